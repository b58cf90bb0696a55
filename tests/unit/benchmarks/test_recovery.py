"""What is taken for the pause of an answer, and what the report says of it."""

from typing import Any

from benchmarks.recovery import silence_from, silences_before
from benchmarks.recovery_page import cells, target_of, verdict

TIMES = [1.0, 1.25, 1.5, 1.75, 4.0, 4.25, 4.75]


def row(**values: Any) -> dict[str, Any]:
    whole = {"num_ranks": 2, "num_pairs": 1, "victim": "rank 0", "manner": "killed", "num": 10}
    seconds = {"median_seconds": 4.0, "max_seconds": 6.0, "usual_seconds": 0.02, "usual_max_seconds": 0.04}
    return whole | seconds | {"milestones": {"model loaded": 3.0}} | values


def test_the_pause_is_the_longest_silence_from_the_blow_on() -> None:
    assert silence_from(TIMES, 1.6) == (1.75, 4.0)
    assert silence_from(TIMES, 2.0) == (2.0, 4.0)
    assert silence_from(TIMES, 4.0) == (4.25, 4.75)


def test_silences_before_the_blow_end_before_it() -> None:
    assert silences_before(TIMES, 1.6) == [0.25, 0.25]


def test_a_stopped_process_may_take_the_liveness_limit_longer() -> None:
    assert (target_of(row()), target_of(row(manner="stopped"))) == (5.0, 7.0)
    assert target_of(row(victim="drafter")) is None


def test_the_report_names_what_misses_its_target() -> None:
    assert verdict([row()]) == "All targets are met."
    late = row(victim="gateway", median_seconds=3.5)
    assert verdict([row(), late]) == "Targets missed: gateway killed at 2 ranks, 1 pairs."


def test_every_size_of_stack_has_a_part_with_the_path_to_the_next_token() -> None:
    (part,) = cells([row()])
    assert "## 2 ranks, 1 pair\n" in part
    assert "- rank 0 killed: model loaded 3.00, next token 4.00" in part
