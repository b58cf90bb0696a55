"""Drafts of a draft head are what the head would write from all the features there are, however they came."""

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN
from safetensors.torch import load_file, save_file

from outrider.model.draft_head import FEATURE_DTYPE, DraftHead
from outrider.model.sampling import Chain, SamplingState, noised_scores
from outrider.params import SamplingParams, SequenceParams
from outrider.rpc.config import ConfigError
from services.drafter import sampled
from services.drafter.guess import Guess
from services.drafter.head_source import MAX_NUM_ROWS, HeadSource
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question
from tests.unit.model.random_heads import PlainHead, head_config, write_head
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, write_checkpoint

SIZE = 48
ROW_BYTES = 2 * SIZE
GREEDY = SequenceParams(sampling=SamplingParams(temperature=0))
MIXED = SequenceParams(
    sampling=SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.4, top_p=0.95),
    seed=2**40 + 5,
)
ROOM = 1 << 22


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    target = write_checkpoint(tmp_path_factory.mktemp("target"), deepseek_config())
    head = write_head(tmp_path_factory.mktemp("head"), head_config())
    tensors = load_file(head / "model.safetensors")
    # Surer of its tokens than random weights are.
    tensors["lm_head.weight"] *= 4
    save_file(tensors, head / "model.safetensors", {"format": "pt"})
    return head, target


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture(scope="module")
def head(directories):
    return DraftHead.load(*directories)


@pytest.fixture(scope="module")
def plain(directories):
    return PlainHead(*directories)


@pytest.fixture
def new_source(head, executor):
    return lambda room=ROOM: HeadSource(head, executor, kv_cache_bytes=room)


def features_of(seed, num_tokens):
    """Features of so many tokens, in bf16; those of fewer tokens are their beginning."""
    rows = torch.stack(
        [
            torch.randn(SIZE, generator=torch.Generator().manual_seed(1000 * seed + i))
            for i in range(num_tokens)
        ]
    )
    return rows.to(FEATURE_DTYPE)


def text_of(seed: int, num_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(VOCAB_SIZE, size=num_tokens).tolist()


class Stream:
    """A sequence, and features that reach it as a scheduler passes them on."""

    def __init__(self, seed, num_prompt_tokens, *, output: Sequence[int] = (), params=GREEDY, first=0):
        self.seed = seed
        self.sequence = RunningSequence(
            id=seed,
            tenant="",
            num_prompt_tokens=num_prompt_tokens,
            params=params.to_proto(),
            span=INVALID_SPAN,
        )
        self.sequence.extend(array("I", [*text_of(seed, num_prompt_tokens), *output]))
        self.send(first, num_prompt_tokens + len(output) - 1)

    def send(self, first, end):
        """Sends the features of tokens first .. end - 1."""
        rows = features_of(self.seed, end)[first:]
        self.sequence.add_features(first, rows.view(torch.uint8).numpy().tobytes(), ROW_BYTES)

    def commit(self, token_ids):
        """Adds final tokens with the features of those before the last."""
        known = len(self.sequence.token_ids)
        self.sequence.extend(array("I", token_ids))
        self.send(known - 1, known - 1 + len(token_ids))

    @property
    def features(self):
        return features_of(self.seed, len(self.sequence.token_ids) - 1)


def ask(source, *questions):
    asked = [
        Question(sequence=stream.sequence, assumed=tuple(assumed), max_num_tokens=max_num_tokens)
        for stream, assumed, max_num_tokens in questions
    ]
    return asyncio.run(source.guess(asked))


def test_a_draft_is_what_a_plain_head_writes(new_source, plain):
    stream = Stream(1, 40)
    (guess,) = ask(new_source(), (stream, (), 8))
    assert 2 <= len(guess.token_ids) <= 8
    expected = plain.draft(stream.features.float(), stream.sequence.token_ids.tolist(), 8)
    assert list(guess.token_ids) == expected[: len(guess.token_ids)]
    assert np.prod(guess.confidences) >= sampled.MIN_SURVIVAL
    assert len(guess.alternatives) == len(guess.token_ids) + 1


def test_a_draft_ranks_tokens_by_the_sequence_s_own_parameters_and_noise(new_source, plain):
    stream = Stream(2, 30, params=MIXED)
    (guess,) = ask(new_source(), (stream, (), 1))
    token_ids = stream.sequence.token_ids.tolist()
    _, logits = plain.rows(stream.features.double(), token_ids[1:])
    state = SamplingState(MIXED, token_ids, len(token_ids), max_model_len=1024)
    scores = noised_scores(logits[-1:].float(), [Chain(state, [])])
    assert list(guess.token_ids) == scores.argmax(dim=-1).tolist()


def test_one_batch_gives_what_single_questions_give(new_source):
    streams = [Stream(seed, 5 + 13 * seed, params=MIXED if seed % 2 else GREEDY) for seed in range(1, 6)]
    questions = [(stream, text_of(90 + n, n), 6) for stream in streams for n in range(4)]
    together = ask(new_source(), *questions)
    streams = [Stream(seed, 5 + 13 * seed, params=MIXED if seed % 2 else GREEDY) for seed in range(1, 6)]
    source = new_source()
    alone = [
        ask(source, (streams[place // 4], assumed, number))[0]
        for place, (_, assumed, number) in enumerate(questions)
    ]
    assert sum(map(len, (guess.token_ids for guess in together))) > len(questions)
    assert [guess.token_ids for guess in together] == [guess.token_ids for guess in alone]
    assert [guess.confidences for guess in together] == [guess.confidences for guess in alone]


def test_a_draft_behind_assumed_tokens_is_the_rest_of_the_draft_that_has_them(new_source):
    source, stream = new_source(), Stream(3, 33)
    (whole,) = ask(source, (stream, (), 8))
    assert len(whole.token_ids) > 2
    (rest,) = ask(source, (stream, whole.token_ids[:2], 8))
    assert rest.token_ids[: len(whole.token_ids) - 2] == whole.token_ids[2:]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_was_drafted_before_leaves_no_trace(data, head, executor):
    source = HeadSource(head, executor, kv_cache_bytes=ROOM)
    stream = Stream(4, data.draw(st.integers(2, 40)))
    for _ in range(data.draw(st.integers(1, 4))):
        (guess,) = ask(source, (stream, (), 6))
        ask(source, (stream, guess.token_ids[:1], 4), (stream, text_of(7, 2), 4))
        accepted = list(guess.token_ids[: data.draw(st.integers(0, 6))])
        stream.commit([*accepted, data.draw(st.integers(0, VOCAB_SIZE - 1))])
    num_prompt_tokens = stream.sequence.num_prompt_tokens
    fresh = Stream(4, num_prompt_tokens, output=stream.sequence.token_ids[num_prompt_tokens:])
    assert ask(source, (stream, (), 6)) == ask(
        HeadSource(head, executor, kv_cache_bytes=ROOM), (fresh, (), 6)
    )


def test_features_are_let_go_once_they_are_read(new_source):
    stream = Stream(5, 20)
    ask(new_source(), (stream, (), 4))
    assert stream.sequence.features is not None
    assert (stream.sequence.features.offset, len(stream.sequence.features.rows)) == (19, 0)


def test_without_the_features_of_the_last_tokens_there_is_no_guess(new_source):
    source, stream = new_source(), Stream(6, 20)
    assert ask(source, (stream, (), 4)) != [Guess()]
    stream.sequence.extend(array("I", [3]))
    assert ask(source, (stream, (), 4), (stream, (5,), 4)) == [Guess(), Guess()]
    stream.send(19, 20)
    assert ask(source, (stream, (), 4)) != [Guess()]


def test_a_sequence_without_any_features_has_no_guess(new_source):
    stream = Stream(7, 20)
    stream.sequence.features = None
    assert ask(new_source(), (stream, (), 4)) == [Guess()]


def test_a_gap_in_the_features_begins_anew_behind_it(new_source):
    source, stream = new_source(), Stream(8, 20)
    ask(source, (stream, (), 4))
    stream.sequence.extend(array("I", text_of(80, 10)))
    stream.send(23, 29)
    later = Stream(8, 20, output=text_of(80, 10), first=23)
    (guess,) = ask(source, (stream, (), 4))
    assert guess.token_ids
    assert [guess] == ask(new_source(), (later, (), 4))


def test_features_sent_twice_are_read_once(new_source):
    source, stream, once = new_source(), Stream(9, 20), Stream(9, 20)
    ask(source, (stream, (), 4))
    stream.send(5, 19)
    assert ask(source, (stream, (), 4)) == ask(new_source(), (once, (), 4))


def test_a_long_text_is_read_over_several_calls(new_source):
    source, stream = new_source(), Stream(10, MAX_NUM_ROWS + 10)
    short = Stream(11, 10)
    first, second = ask(source, (stream, (), 2), (short, (), 2))
    assert (first, bool(second.token_ids)) == (Guess(), True)
    (caught_up,) = ask(source, (stream, (), 2))
    assert caught_up.token_ids


def test_where_there_is_no_room_the_guess_is_empty_and_others_go_on(new_source, head):
    source = new_source(room=3 * head.kv_bytes_per_block(16))
    small, large = Stream(12, 10), Stream(13, 200)
    assert [bool(guess.token_ids) for guess in ask(source, (large, (), 2), (small, (), 2))] == [False, True]
    source._drafts.blocks.check()


def test_an_evicted_sequence_begins_anew_with_its_next_features(new_source, head):
    source = new_source(room=3 * head.kv_bytes_per_block(16))
    first, second = Stream(14, 20), Stream(15, 20)
    assert ask(source, (first, (), 2)) != [Guess()]
    assert ask(source, (second, (), 2)) != [Guess()]
    first.commit([1, 2])
    later = Stream(14, 20, output=[1, 2], first=19)
    assert ask(source, (first, (), 2)) == ask(new_source(), (later, (), 2)) != [Guess()]


def test_a_closed_sequence_leaves_nothing(new_source):
    source, stream = new_source(), Stream(16, 20)
    ask(source, (stream, (), 2))
    asyncio.run(source.close(stream.sequence, finished=True))
    blocks = source._drafts.blocks
    blocks.check()
    assert len(blocks._free) == blocks.num_blocks
    assert not source._drafts._read


def test_tokens_beyond_the_vocabulary_cost_the_guess_only(new_source):
    source, stream = new_source(), Stream(17, 20)
    stream.sequence.extend(array("I", [VOCAB_SIZE + 7]))
    stream.send(19, 20)
    assert ask(source, (stream, (), 4), (Stream(18, 9), (VOCAB_SIZE,), 4)) == [Guess(), Guess()]


def test_a_directory_that_holds_no_head_is_named(directories, executor, tmp_path):
    for wrong in [(tmp_path, directories[1]), (directories[0], tmp_path)]:
        with pytest.raises(ConfigError, match=r"OUTRIDER_DRAFTER_HEAD_DIR .*is missing"):
            HeadSource.load(*wrong, kv_cache_bytes=ROOM, num_threads=1, executor=executor)
