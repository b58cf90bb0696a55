"""Acceptance is counted place by place, given that the tokens before were accepted."""

from benchmarks.recorded_acceptance import measure


def text(num_output_tokens: int, drafts: list[tuple[int, int, int]]) -> dict:
    """A recorded text; drafts are position, length and how many tokens are right."""
    return {
        "kind": "k",
        "num_output_tokens": num_output_tokens,
        "drafts": [
            {"position": position, "source": "suffix", "confidences": [0.5] * length, "num_right": right}
            for position, length, right in drafts
        ],
    }


def test_a_place_counts_only_where_those_before_it_were_right() -> None:
    (row,) = measure([text(100, [(0, 3, 3), (10, 3, 1), (20, 2, 0), (30, 2, 2)])])
    assert row["per_position"] == [0.75, round(2 / 3, 3), 1.0, *[None] * 5]
    assert row["mean_accepted"] == 1.5
    assert row["mean_drafted"] == 2.5
    assert row["drafted_part"] == 0.04


def test_tokens_drafted_behind_the_end_are_not_counted() -> None:
    (row,) = measure([text(10, [(8, 5, 2)])])
    assert row["per_position"][:3] == [1.0, 1.0, None]
    assert row["mean_drafted"] == 2
