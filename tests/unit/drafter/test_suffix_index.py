"""The index of texts: what it guesses, what it forgets, what it weighs."""

import random
import tracemalloc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from services.drafter.guess import NUM_TOKENS_PER_MATCHED, SEPARATOR, Guess
from services.drafter.suffix_index import LENGTHS, MAX_MATCH_LENGTH, SuffixIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def index_of(*finished: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    for text in finished:
        index.extend(text)
        index.end_text()
    return index


def guess(index: SuffixIndex, context: list[int], max_num_tokens: int = 8) -> Guess:
    return index.guess(array("I", context[-MAX_MATCH_LENGTH:]), max_num_tokens)


def occurs(text: list[int], part: list[int]) -> bool:
    return any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


@given(finished=st.lists(texts, max_size=5), context=texts, max_num_tokens=st.integers(0, 20))
def test_a_guess_continues_a_text_in_which_the_match_occurs(finished, context, max_num_tokens) -> None:
    found = guess(index_of(*finished), context, max_num_tokens)
    if found.token_ids:
        continued = context[len(context) - found.match_length :] + list(found.token_ids)
        shortest = continued[found.match_length - LENGTHS[-1] :]
        assert any(occurs(text, shortest[: LENGTHS[-1] + 1]) for text in finished)
        assert any(occurs(text, continued[: found.match_length]) for text in finished)
        # Every guessed token follows the two before it somewhere.
        steps = [shortest[start : start + 3] for start in range(len(shortest) - 2)]
        assert all(any(occurs(text, step) for text in finished) for step in steps)


@given(text=texts, max_num_tokens=st.integers(0, 20))
def test_a_guess_from_a_texts_own_past_continues_that_text(text, max_num_tokens) -> None:
    index = SuffixIndex()
    index.extend(text)
    found = guess(index, text, max_num_tokens)
    if found.token_ids:
        # A copy may run on into itself: each step is looked for in the text with the guesses before it.
        for count in range(1, len(found.token_ids) + 1):
            whole = text + list(found.token_ids[:count])
            assert occurs(whole[:-1], whole[-3:])


@given(finished=st.lists(texts, max_size=4), context=texts, max_num_tokens=st.integers(0, 20))
def test_a_guess_is_no_longer_than_asked_and_than_its_match_is_worth(
    finished, context, max_num_tokens
) -> None:
    found = guess(index_of(*finished), context, max_num_tokens)
    assert len(found.token_ids) == len(found.confidences)
    assert len(found.token_ids) <= min(max_num_tokens, NUM_TOKENS_PER_MATCHED * found.match_length)
    assert all(0 < confidence < 1 for confidence in found.confidences)
    assert SEPARATOR not in found.token_ids


@given(parts=st.lists(texts, max_size=6), context=texts)
def test_a_text_added_in_pieces_is_the_text_added_at_once(parts, context) -> None:
    pieces, whole = SuffixIndex(), SuffixIndex()
    for part in parts:
        pieces.extend(part)
    whole.extend([token_id for part in parts for token_id in part])
    assert guess(pieces, context) == guess(whole, context)
    assert pieces.num_bytes == whole.num_bytes


@given(first=texts, second=texts, context=texts)
def test_forgetting_a_text_leaves_what_never_having_seen_it_leaves(first, second, context) -> None:
    both, one = index_of(first, second), index_of(second)
    both.forget(len(first) + 1)
    assert guess(both, context) == guess(one, context)
    assert both.num_bytes == one.num_bytes


@given(text=texts, steps=st.lists(st.integers(0, 9), max_size=12), context=texts)
def test_a_text_forgotten_bit_by_bit_is_guessed_from_what_is_left(text, steps, context) -> None:
    index = index_of(text)
    for step in steps:
        index.forget(step)
        left = text[len(text) + 1 - len(index) :] if len(index) > 1 else []
        found = guess(index, context)
        assert not found.token_ids or occurs(left, [*context[-2:], found.token_ids[0]])
    index.forget(len(index))
    assert index.num_bytes == SuffixIndex().num_bytes


def test_the_most_frequent_continuation_wins() -> None:
    index = index_of([1, 2, 3, 7], [1, 2, 3, 8], [1, 2, 3, 8])
    assert guess(index, [1, 2, 3]).token_ids[0] == 8


def test_a_longer_match_outweighs_several_short_ones() -> None:
    index = index_of([5, 6, 1, 2, 3, 7], [9, 2, 3, 8], [9, 2, 3, 8], [9, 2, 3, 8])
    assert guess(index, [5, 6, 1, 2, 3]).token_ids[0] == 7


def test_confidence_grows_with_the_length_of_the_match() -> None:
    index = index_of(list(range(100)))
    confidences = [guess(index, list(range(50 - n, 50))).confidences[0] for n in (2, 4, 8, 16, 32)]
    assert confidences == sorted(confidences)
    assert confidences[0] < 0.6 < 0.9 < confidences[-1]


def test_confidence_falls_when_continuations_differ() -> None:
    sure, torn = index_of([1, 2, 3], [1, 2, 3]), index_of([1, 2, 3], [1, 2, 4])
    assert guess(torn, [1, 2]).confidences[0] < guess(sure, [1, 2]).confidences[0]


def test_a_run_is_copied_beyond_the_end_of_the_text() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3] * 4)
    assert guess(index, [1, 2, 3] * 4).token_ids == (1, 2, 3, 1, 2, 3, 1, 2)


def test_no_guess_crosses_from_one_text_into_the_next() -> None:
    assert guess(index_of([1, 2], [3, 4]), [1, 2]) == Guess()
    assert guess(index_of([1, 2], [3, 4]), [2, 3]) == Guess()


def test_random_tokens_give_nearly_no_guesses() -> None:
    rng = random.Random(0)
    index, num_guessed = SuffixIndex(), 0
    for _ in range(1000):
        num_guessed += len(index.guess(index.tokens[-MAX_MATCH_LENGTH:], 8).token_ids)
        index.extend([rng.randrange(100_000)])
    assert num_guessed == 0


def test_the_estimate_of_bytes_covers_what_python_allocates() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(50_000) for _ in range(12_000)]
    tracemalloc.start()
    index = index_of(tokens[:9_000])
    for start in range(9_000, 12_000, 100):
        index.extend(tokens[start : start + 100])
        index.forget(100)
    full, full_estimate = tracemalloc.get_traced_memory()[0], index.num_bytes
    while len(index) > 1_000:
        index.forget(100)
    shrunk = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert full < full_estimate < 2 * full
    assert shrunk < index.num_bytes
