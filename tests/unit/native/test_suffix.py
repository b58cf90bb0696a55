"""The native suffix memory: what it guesses, stores, forgets and weighs."""

import subprocess
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_native.suffix import MAX_MATCH_LENGTH, MAX_TEXT_LENGTH, RunningText, StoredText, TextMemory

from tests import suffix_reference as reference

NONE = array("I")
small = st.integers(0, 3)
texts = st.lists(small, max_size=60)
# Long enough to be followed, and often the same again.
phrases = st.integers(0, 5).map(lambda seed: [Random(seed).randrange(9) for _ in range(20 + 15 * seed)])
spoken = st.lists(st.one_of(phrases, texts), max_size=5).map(lambda parts: list(chain(*parts)))
operations = st.lists(st.one_of(spoken, st.integers(0, 3)), max_size=8)


def tokens(values: Iterable[int]) -> array:
    return array("I", values)


def memory_of(*finished: Iterable[int], is_output: bool = True) -> TextMemory:
    memory = TextMemory(7, 1e6)
    for text in finished:
        add(memory, text, is_output=is_output)
    return memory


def add(memory: TextMemory, text: Iterable[int], *, is_output: bool = True, now: int = 0) -> None:
    memory.add(tokens(text), is_output=is_output, now=now)
    memory.end_text()


def running(text: Sequence[int], num_taken_in: int | None = None) -> RunningText:
    own = RunningText(7)
    own.take_in(tokens(text), len(text) if num_taken_in is None else num_taken_in)
    return own


def guess(source: TextMemory | RunningText, context: Iterable[int], max_num_tokens: int = 8) -> tuple:
    return source.guess(tokens(context), NONE, max_num_tokens)


def stored(memory: TextMemory) -> list[reference.Stored]:
    found = [memory.text(name) for name in memory.texts()]
    return [reference.Stored(tokens_of(text), text.num_context_tokens, text.num_repeats) for text in found]


def tokens_of(text: StoredText) -> list[int]:
    return list(memoryview(text.token_ids).cast("I"))


def holds(memory: TextMemory, part: Sequence[int]) -> bool:
    return any(occurs(text.token_ids, part) for text in stored(memory))


def occurs(text: Sequence[int], part: Sequence[int]) -> bool:
    return any(list(text[at : at + len(part)]) == list(part) for at in range(len(text) - len(part) + 1))


def same(found: tuple, expected: tuple) -> None:
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1])
    assert found[2] == expected[2]
    assert [[token for token, _ in place] for place in found[3]] == [
        [token for token, _ in place] for place in expected[3]
    ]


@settings(deadline=None, max_examples=200)
@given(operations=operations, contexts=st.lists(spoken, min_size=1, max_size=3), num=st.integers(0, 20))
def test_the_memory_guesses_as_the_plain_vote_over_the_texts_it_holds(operations, contexts, num) -> None:
    memory = memory_of()
    for operation in operations:
        if isinstance(operation, int):
            for _ in range(operation):
                memory.forget()
        else:
            add(memory, operation)
        memory.check()
    for context in [*contexts, *[text.token_ids[:40] for text in stored(memory)[:3]]]:
        same(guess(memory, context, num), reference.guess(stored(memory), context, num))


@settings(deadline=None)
@given(text=spoken, ahead=st.integers(0, 40), assumed=st.lists(small, max_size=4), num=st.integers(0, 20))
def test_a_text_guesses_as_the_plain_vote_over_its_own_past(text, ahead, assumed, num) -> None:
    num_taken_in = max(0, len(text) - ahead)
    own = running(text, num_taken_in)
    own.check()
    found = own.guess(tokens(text), tokens(assumed), num)
    tail = [*text[num_taken_in:], *assumed]
    same(found, reference.guess([reference.Stored(text[:num_taken_in])], [*text, *assumed], num, tail))


@settings(deadline=None)
@given(text=spoken, cuts=st.lists(st.integers(0, 50), max_size=6))
def test_a_text_taken_in_by_pieces_is_the_text_taken_in_at_once(text, cuts) -> None:
    pieces = RunningText(7)
    for cut in [*cuts, len(text)]:
        pieces.take_in(tokens(text), cut)
    assert guess(pieces, text) == guess(running(text), text)
    assert pieces.num_bytes == running(text).num_bytes


@settings(deadline=None)
@given(added=st.lists(spoken, max_size=6))
def test_of_seventeen_tokens_in_a_row_some_stored_text_holds_a_copy(added) -> None:
    memory = memory_of(*added)
    for text in added:
        assert all(holds(memory, text[at : at + 17]) for at in range(len(text) - 16))


@settings(deadline=None)
@given(added=st.lists(spoken, max_size=6))
def test_no_stored_text_crosses_from_one_text_into_another(added) -> None:
    for text in stored(memory_of(*added)):
        assert any(occurs(whole, text.token_ids) for whole in added)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(32, 3000), max_size=4), data=st.data())
def test_a_text_heard_again_is_not_stored_again(lengths, data) -> None:
    rng = Random(0)
    added = [[rng.randrange(100_000) for _ in range(length)] for length in lengths]
    memory = memory_of(*added)
    num_tokens = len(memory)
    for text in data.draw(st.permutations(added)):
        add(memory, text)
        assert len(memory) == num_tokens


def test_a_conversation_stores_each_of_its_turns_once() -> None:
    rng, said = Random(0), list[int]()
    memory = memory_of()
    for _ in range(20):
        said += [rng.randrange(100_000) for _ in range(500)]
        add(memory, said)
    assert len(memory) < 1.2 * len(said)
    assert all(guess(memory, said[at - 20 : at], 1)[0] == (said[at],) for at in range(20, len(said)))


def test_forgetting_everything_gives_the_memory_back() -> None:
    rng, memory = Random(0), memory_of()
    for _ in range(40):
        add(memory, [rng.randrange(100_000) for _ in range(1000)])
    full = memory.num_bytes
    while memory.forget():
        memory.check()
    assert len(memory) == 0
    assert memory.texts() == ()
    assert memory.num_bytes < full / 50


def test_room_that_was_given_back_is_used_again() -> None:
    rng, memory, sizes = Random(0), memory_of(), []
    for _ in range(200):
        add(memory, [rng.randrange(100_000) for _ in range(1000)])
        while len(memory) > 20_000:
            memory.forget()
        sizes.append(memory.num_bytes)
    assert max(sizes[100:]) < 1.05 * max(sizes[:100])


def test_a_token_takes_as_many_bytes_in_a_large_memory_as_in_a_small_one() -> None:
    rng, own, text = Random(0), RunningText(7), array("I")
    for _ in range(60):
        text.extend(rng.randrange(100_000) for _ in range(1000))
        own.take_in(text, len(text))
        assert len(text) < 4000 or own.num_bytes < 110 * len(text)


def test_the_bytes_reported_are_the_bytes_taken() -> None:
    program = """
from array import array
from itertools import chain
from random import Random
from outrider_native.suffix import TextMemory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
rng, memory = Random(0), TextMemory(1, 1e6)
text = array("I", (rng.randrange(100_000) for _ in range(300_000)))
before = resident()
memory.add(text, is_output=True, now=0)
memory.end_text()
print(memory.num_bytes / (resident() - before))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.9 < float(result.stdout) < 1.15


def test_the_least_useful_text_is_forgotten_first_and_of_equals_the_oldest() -> None:
    rng = Random(0)
    first, second, third = ([rng.randrange(100_000) for _ in range(200)] for _ in range(3))
    memory = memory_of(first, second, third)
    add(memory, first)
    for gone, left in ((second, [first, third]), (third, [first]), (first, [])):
        assert memory.forget() == 200
        assert not holds(memory, gone[:20])
        assert all(holds(memory, text[:20]) for text in left)


def test_a_text_earns_where_a_guess_from_it_would_have_been_right() -> None:
    rng = Random(0)
    first, second = ([rng.randrange(100_000) for _ in range(200)] for _ in range(2))
    # Too short to be followed: what counts is the token behind eight known ones.
    for number, part in enumerate((first[50:70], second[50:70])):
        memory = memory_of(first, second)
        add(memory, [1, *part, 2])
        memory.forget()
        assert holds(memory, first[:20]) == (number == 0)
        assert holds(memory, second[:20]) == (number == 1) or number == 0


def test_usefulness_fades_as_texts_are_stored() -> None:
    memory = TextMemory(7, 100.0)
    add(memory, range(100))
    assert memory.text(memory.texts()[0]).usefulness == pytest.approx(1.0)
    add(memory, range(1000, 1200))
    assert memory.text(memory.texts()[0]).usefulness == pytest.approx(0.25)


def test_a_text_is_as_old_as_its_last_use() -> None:
    memory = TextMemory(7, 1e6)
    add(memory, range(100), now=5)
    add(memory, range(100), now=9)
    assert memory.text(memory.texts()[0]).used_at == 9


def test_what_outputs_repeat_counts_for_more_than_what_was_said_once() -> None:
    often, once = [*range(200), 7, *range(300, 340)], [*range(150, 200), 8, *range(400, 440)]
    memory = memory_of(often, once)
    assert guess(memory, range(180, 200))[0][0] == 8, "of equals the latest wins"
    for _ in range(3):
        add(memory, often)
    assert guess(memory, range(180, 200))[0][0] == 7
    given_only = memory_of(often, once)
    for _ in range(3):
        add(given_only, often, is_output=False)
    assert guess(given_only, range(180, 200))[0][0] == 8


def test_a_text_is_restored_as_it_was() -> None:
    memory = memory_of(range(3000), range(1000, 2500), range(40))
    copy = memory_of()
    for name in memory.texts():
        copy.restore(memory.text(name))
    copy.check()
    assert stored(copy) == stored(memory)
    for at in range(20, 2900, 331):
        assert guess(copy, range(at - 20, at)) == guess(memory, range(at - 20, at))


def test_a_long_text_is_forgotten_part_by_part_and_guessed_across_its_parts() -> None:
    memory = memory_of(range(5 * MAX_TEXT_LENGTH))
    for end in range(MAX_TEXT_LENGTH - 40, MAX_TEXT_LENGTH + 40):
        assert guess(memory, range(end - 20, end), 1)[0] == (end,)
    assert memory.forget() <= MAX_TEXT_LENGTH
    assert guess(memory, range(3 * MAX_TEXT_LENGTH, 3 * MAX_TEXT_LENGTH + 20), 1)[0]


def test_a_text_that_is_followed_may_be_forgotten_meanwhile() -> None:
    memory, text = memory_of(range(300)), tokens(range(300))
    memory.add(text[:100], is_output=True, now=0)
    assert memory.forget() == 300
    memory.check()
    memory.add(text[100:], is_output=True, now=0)
    memory.end_text()
    memory.check()
    assert all(holds(memory, range(at, at + 17)) for at in range(84, 283))


def test_the_most_frequent_continuation_wins() -> None:
    memory = memory_of([1, 2, 3, 7], [1, 2, 3, 8], [1, 2, 3, 8])
    assert guess(memory, [1, 2, 3])[0][0] == 8


def test_a_longer_match_outweighs_several_short_ones() -> None:
    memory = memory_of([5, 6, 1, 2, 3, 7], [9, 2, 3, 8], [9, 2, 3, 8], [9, 2, 3, 8])
    assert guess(memory, [5, 6, 1, 2, 3])[0][0] == 7


def test_confidence_grows_with_the_length_of_the_match() -> None:
    memory = memory_of(range(100))
    confidences = [guess(memory, range(50 - n, 50))[1][0] for n in (2, 4, 8, 16, 32)]
    assert confidences == sorted(confidences)
    assert confidences[0] < 0.6 < 0.9 < confidences[-1]


def test_confidence_falls_when_continuations_differ_and_the_others_are_named() -> None:
    sure, torn = memory_of([1, 2, 3], [1, 2, 3]), memory_of([1, 2, 3], [1, 2, 4])
    assert guess(torn, [1, 2])[1][0] < guess(sure, [1, 2])[1][0]
    token_ids, confidences, _, alternatives = guess(torn, [1, 2], 1)
    assert token_ids == (4,)
    assert alternatives[0] == ((3, pytest.approx(confidences[0])),)


def test_what_may_come_behind_a_draft_is_named() -> None:
    token_ids, _, _, alternatives = guess(memory_of(range(100)), range(20), 3)
    assert token_ids == (20, 21, 22)
    assert [[token_id for token_id, _ in place] for place in alternatives] == [[], [], [], [23]]


def test_a_run_is_copied_beyond_the_end_of_the_text() -> None:
    assert guess(running([1, 2, 3] * 4), [1, 2, 3] * 4)[0] == (1, 2, 3, 1, 2, 3, 1, 2)


def test_what_is_assumed_counts_as_said_but_is_not_kept() -> None:
    own = running([5, 6, 7, 8, 9, 5, 6])
    found = own.guess(tokens([5, 6, 7, 8, 9, 5, 6]), tokens([7, 8]), 3)
    assert found[0] == (9, 5, 6)
    assert len(own) == 7


def test_random_tokens_give_nearly_no_guesses() -> None:
    rng, text, num_guessed = Random(0), array("I"), 0
    own = RunningText(7)
    for _ in range(1000):
        num_guessed += len(own.guess(text, NONE, 8)[0])
        text.append(rng.randrange(100_000))
        own.take_in(text, 1)
    assert num_guessed == 0


@pytest.mark.parametrize("wrong", [[1, 2], *(array(kind, [1]) for kind in "Hifq"), b"1234", None])
def test_what_holds_no_token_ids_is_refused(wrong) -> None:
    with pytest.raises(TypeError, match="token_ids"):
        memory_of().add(wrong, is_output=True, now=0)
    with pytest.raises(TypeError, match="assumed"):
        memory_of().guess(NONE, wrong, 8)


def test_a_text_shorter_than_what_was_taken_in_is_refused() -> None:
    with pytest.raises(ValueError, match="token_ids"):
        running(range(10)).guess(tokens(range(9)), NONE, 8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", []),
        ("token_ids", range(MAX_TEXT_LENGTH + 1)),
        ("num_context_tokens", 33),
        ("usefulness", float("nan")),
        ("usefulness", float("inf")),
        ("usefulness", -1.0),
        ("num_repeats", b""),
    ],
)
def test_a_text_that_no_memory_stores_is_refused_before_it_comes_near_one(field, value) -> None:
    given = {
        "token_ids": range(40),
        "num_context_tokens": 0,
        "usefulness": 1.0,
        "used_at": 0,
        "num_repeats": b"\0\0",
        field: value,
    }
    token_ids = tokens(given.pop("token_ids"))
    with pytest.raises(ValueError, match=field):
        StoredText(token_ids=token_ids, **given)


def test_a_text_that_has_been_forgotten_is_not_there() -> None:
    memory = memory_of(range(100))
    (name,) = memory.texts()
    memory.forget()
    for wrong in (name, 10**6):
        with pytest.raises(ValueError, match="text_id"):
            memory.text(wrong)


def test_no_more_than_the_last_tokens_are_compared() -> None:
    assert guess(memory_of(range(100)), range(60))[2] == MAX_MATCH_LENGTH
