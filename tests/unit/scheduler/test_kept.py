"""Drafts that wait for their sequence, or lie behind it."""

from hypothesis import given
from hypothesis import strategies as st

from outrider import token_hash
from services.scheduler.kept import MAX_NUM_KEPT, KeptDrafts
from services.scheduler.sequence import Draft, Sequence
from tests.unit.scheduler.scenario import SequenceMaker


def draft(base_length: int, token_ids: tuple[int, ...], source: str = "suffix") -> Draft:
    confidences = tuple(0.5 + token_id / 100 for token_id in token_ids)
    return Draft(base_length=base_length, token_ids=token_ids, confidences=confidences, source=source)


def keep(kept: KeptDrafts, sequence: Sequence, base: list[int], made: Draft) -> None:
    kept.keep(sequence.id, token_hash.extend(token_hash.EMPTY, base), made)


def test_a_draft_fits_once_its_sequence_has_grown_to_what_it_was_made_for() -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()([1, 2])
    keep(kept, sequence, [1, 2, 3], draft(3, (4, 5)))
    keep(kept, sequence, [1, 2, 9], draft(3, (6, 7)))
    assert kept.fitting(sequence) == {}
    sequence.commit([3])
    assert kept.fitting(sequence) == {"suffix": draft(3, (4, 5))}


def test_the_rest_of_a_draft_fits_with_the_confidences_of_its_tokens() -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()([1, 2])
    keep(kept, sequence, [1, 2], draft(2, (3, 4, 5)))
    sequence.commit([3])
    assert kept.fitting(sequence) == {"suffix": draft(3, (4, 5))}
    sequence.commit([4])
    assert kept.fitting(sequence) == {"suffix": draft(4, (5,))}


def test_a_draft_whose_tokens_turned_out_otherwise_is_gone() -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()([1, 2])
    keep(kept, sequence, [1, 2], draft(2, (3, 4, 5)))
    sequence.commit([9])
    assert kept.fitting(sequence) == {}
    assert len(kept) == 0


def test_each_source_keeps_a_draft_of_its_own_and_the_one_made_for_the_longest_text_counts() -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()([1, 2, 3])
    keep(kept, sequence, [1, 2, 3], draft(3, (7, 7)))
    keep(kept, sequence, [1, 2], draft(2, (3, 8)))
    keep(kept, sequence, [1, 2, 3], draft(3, (6,), "model"))
    assert kept.fitting(sequence) == {"suffix": draft(3, (7, 7)), "model": draft(3, (6,), "model")}


def test_of_too_many_drafts_the_oldest_goes() -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()([1])
    for token_id in range(MAX_NUM_KEPT + 10):
        keep(kept, sequence, [1, token_id], draft(2, (5,)))
    assert len(kept) == MAX_NUM_KEPT
    sequence.commit([3])
    assert kept.fitting(sequence) == {}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_what_fits_is_always_what_some_draft_said_would_follow(text: list[int], data: st.DataObject) -> None:
    kept, sequence = KeptDrafts(), SequenceMaker()(text[:1])
    made = []
    for _ in range(data.draw(st.integers(1, 8))):
        base = text[: data.draw(st.integers(1, len(text)))]
        guess = tuple(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)))
        made.append((base, guess))
        keep(kept, sequence, base, draft(len(base), guess))
    for token_id in text[1:]:
        fitting = kept.fitting(sequence)
        said = [
            [*base, *guess][sequence.num_tokens :]
            for base, guess in made
            if [*base, *guess][: sequence.num_tokens] == sequence.token_ids
            and len(base) <= sequence.num_tokens
        ]
        assert all(list(found.token_ids) in said for found in fitting.values())
        # A later draft of the same base takes the place of an earlier one, so there may be fewer.
        assert fitting or not any(said) or len({tuple(base) for base, _ in made}) < len(made)
        sequence.commit([token_id])
