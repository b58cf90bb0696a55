"""Drafts of a draft model are what the model itself would write, whatever was asked before or beside."""

import asyncio
import math
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN
from safetensors.torch import load_file, save_file

from outrider.kernels import load_kernels
from outrider.model.sampling import Chain, Output, SamplingState, choose, outputs
from outrider.model.transformer import Transformer
from outrider.params import ReasoningLimit, SamplingParams, SequenceParams
from outrider.rpc.config import ConfigError
from services.drafter import draft_model
from services.drafter.draft_model import DraftModel
from services.drafter.guess import Guess
from services.drafter.model_source import ModelSource
from services.drafter.sampled import MIN_SURVIVAL, Text
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import Driver

GREEDY = SequenceParams(sampling=SamplingParams(temperature=0))
MIXED = SequenceParams(
    sampling=SamplingParams(
        temperature=0.8,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        logit_bias={3: 4.0, 8: -6.0},
        bad_words=((5,), (6, 7)),
    ),
    seed=2**40 + 77,
    choice=2,
)
ROOM = 1 << 24


def decided(directory, config):
    """Writes a random model that is surer of its tokens than one with random weights is."""
    write_checkpoint(directory, config)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] *= 3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {
        "dense": decided(tmp_path_factory.mktemp("dense"), llama_config(num_hidden_layers=1)),
        "moe": decided(tmp_path_factory.mktemp("moe"), deepseek_config(num_hidden_layers=2)),
    }


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def dense(directories):
    return Transformer.load(directories["dense"])


@pytest.fixture(scope="module")
def executor():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def source(dense, executor):
    return ModelSource(DraftModel(dense, ROOM), executor)


def opened(prompt, params=GREEDY, output=()):
    sequence = RunningSequence(
        id=1, tenant="", num_prompt_tokens=len(prompt), params=params.to_proto(), span=INVALID_SPAN
    )
    sequence.extend(array("I", [*prompt, *output]))
    return sequence


def ask(source, *questions):
    asked = [
        Question(sequence=sequence, assumed=tuple(assumed), max_num_tokens=max_num_tokens)
        for sequence, assumed, max_num_tokens in questions
    ]
    return asyncio.run(source.guess(asked))


def row_after(model, tokens):
    return Driver(model).logits(tokens)[-1]


def written(model, tokens, max_num_tokens):
    """Returns what a draft without any cache would be, at temperature 0, with its confidences."""
    text, draft, confidences = list(tokens), [], []
    while len(draft) < max_num_tokens:
        row = row_after(model, text)
        best, second = row.to(torch.float64).topk(2).values.tolist()
        confidence = 1 / (1 + math.exp(second - best))
        if math.prod([*confidences, confidence]) < MIN_SURVIVAL:
            break
        draft.append(int(row.argmax()))
        confidences.append(confidence)
        text.append(draft[-1])
    return draft, confidences


def assert_is_own_continuation(model, guess, tokens, max_num_tokens):
    draft, confidences = written(model, tokens, max_num_tokens)
    assert list(guess.token_ids) == draft
    assert guess.confidences == pytest.approx(confidences, abs=1e-5)


PROMPT = [11, 12, 13, 14, 15, 16, 17]


def test_a_greedy_draft_is_what_the_model_itself_writes(source, dense):
    (guess,) = ask(source, (opened(PROMPT), (), 8))
    assert len(guess.token_ids) > 2
    assert_is_own_continuation(dense, guess, PROMPT, 8)


def test_a_draft_goes_on_behind_tokens_that_were_not_those_guessed(source, dense):
    sequence = opened(PROMPT)
    (guess,) = ask(source, (sequence, (), 6))
    wrong = (guess.token_ids[1] + 1) % VOCAB_SIZE
    sequence.extend(array("I", [guess.token_ids[0], wrong]))
    (after,) = ask(source, (sequence, (), 6))
    assert_is_own_continuation(dense, after, [*PROMPT, guess.token_ids[0], wrong], 6)


def test_what_was_only_assumed_does_not_stay(source, dense):
    sequence = opened(PROMPT)
    ask(source, (sequence, (9, 9, 9), 4))
    (guess,) = ask(source, (sequence, (), 6))
    assert_is_own_continuation(dense, guess, PROMPT, 6)


histories = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 96), max_size=3)), max_size=4),
        st.lists(st.lists(st.integers(0, 96), max_size=20), min_size=3, max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(histories, st.sampled_from([5, 9, 100]))
def test_drafts_do_not_depend_on_what_was_asked_before_or_beside(dense, executor, history, num_blocks):
    model = DraftModel(dense, num_blocks * dense.kv_bytes_per_block(draft_model.BLOCK_SIZE))
    source = ModelSource(model, executor)
    sequences = [opened([start] * 9) for start in (1, 2, 3)]
    for questions, news, closes in history:
        guesses = ask(source, *((sequences[index], assumed, 3) for index, assumed in questions))
        for guess, (index, assumed) in zip(guesses, questions, strict=True):
            # Without room for all, some get none.
            if guess != Guess() or num_blocks == 100:
                assert_is_own_continuation(dense, guess, [*sequences[index].token_ids, *assumed], 3)
        for sequence, tokens in zip(sequences, news, strict=True):
            sequence.extend(array("I", tokens))
        if closes:
            asyncio.run(source.close(sequences[0], finished=True))
            sequences[0] = opened([1] * 9)
        model.blocks.check()


def test_closed_sequences_leave_nothing_behind(dense, executor):
    model = DraftModel(dense, ROOM)
    source, sequence = ModelSource(model, executor), opened(PROMPT)
    ask(source, (sequence, (), 4), (sequence, (1,), 4))
    asyncio.run(source.close(sequence, finished=False))
    model.blocks.begin()
    assert model.blocks.reserve(model.blocks.take("all"), model.blocks.num_blocks * draft_model.BLOCK_SIZE)


def test_a_sequence_whose_blocks_were_given_away_is_computed_again(dense, executor):
    model = DraftModel(dense, 2 * dense.kv_bytes_per_block(draft_model.BLOCK_SIZE))
    source, first, second = ModelSource(model, executor), opened([1] * 14), opened([2] * 14)
    for _ in range(3):
        for sequence in (first, second):
            (guess,) = ask(source, (sequence, (), 4))
            assert_is_own_continuation(dense, guess, list(sequence.token_ids), 4)


def test_a_long_prompt_is_caught_up_over_several_calls(source, dense):
    prompt = [token % VOCAB_SIZE for token in range(3 * draft_model.MAX_NUM_ROWS - 10)]
    long, short = opened(prompt), opened(PROMPT)
    for _ in range(2):
        guesses = ask(source, (long, (), 4), (short, (), 4), (long, (1,), 4))
        assert (guesses[0], guesses[2]) == (Guess(), Guess())
        assert guesses[1].token_ids
    assert_is_own_continuation(dense, ask(source, (long, (), 4))[0], prompt, 4)


@pytest.mark.parametrize("params", [GREEDY, MIXED, SequenceParams(seed=5)])
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_every_guess_of_the_target_itself_is_accepted(kind, params, directories, executor):
    model = Transformer.load(directories[kind])
    source, sequence = ModelSource(DraftModel(model, ROOM), executor), opened(PROMPT, params)
    state = SamplingState(params, PROMPT, len(PROMPT), max_model_len=200)
    num_drafted = 0
    while state.num_tokens < 90:
        (guess,) = ask(source, (sequence, (), 8))
        draft = list(guess.token_ids)
        rows = Driver(model).logits([*state.token_ids.tolist(), *draft])[-len(draft) - 1 :]
        chains = [Chain(state, draft)]
        (output,) = outputs(choose(rows, chains, load_kernels("torch")), rows, chains)
        assert isinstance(output, Output)
        assert output.num_accepted_tokens == len(draft)
        sequence.extend(array("I", output.token_ids))
        num_drafted += len(draft)
    assert num_drafted > 30


def test_the_same_noise_agrees_more_often_than_another(dense, executor):
    source = ModelSource(DraftModel(dense, ROOM), executor)
    row = row_after(dense, PROMPT)
    agreed = {0: 0, 1: 0}
    for seed in range(120):
        params = SequenceParams(sampling=SamplingParams(temperature=6.0), seed=seed)
        state = SamplingState(params, PROMPT, len(PROMPT), max_model_len=200)
        # A target that differs from the draft model.
        (token_id,) = choose(row[None] * 0.9, [Chain(state, [])], load_kernels("torch")).tokens.tolist()
        for shift in agreed:
            other = SequenceParams(sampling=params.sampling, seed=seed + shift * 1000)
            (guess,) = ask(source, (opened(PROMPT, other), (), 1))
            agreed[shift] += guess.token_ids == (token_id,)
    assert agreed[0] > 2 * agreed[1]


def test_a_forced_end_of_thinking_is_guessed(source):
    limit = ReasoningLimit(max_tokens=2, end_token_id=33)
    params = SequenceParams(sampling=GREEDY.sampling, reasoning_limit=limit)
    (guess,) = ask(source, (opened(PROMPT, params), (), 6))
    assert guess.token_ids[2] == 33
    assert guess.confidences[2] == 1.0


def test_a_draft_ends_with_a_stop_token(source):
    (free,) = ask(source, (opened(PROMPT), (), 6))
    stop = SequenceParams(sampling=SamplingParams(temperature=0, stop_token_ids=(free.token_ids[1],)))
    (stopped,) = ask(source, (opened(PROMPT, stop), (), 6))
    assert stopped.token_ids == free.token_ids[:2]


def test_nothing_is_guessed_behind_a_stop_token(source):
    stop = SequenceParams(sampling=SamplingParams(temperature=0, stop_token_ids=(40,)))
    assert ask(source, (opened(PROMPT, stop), (40,), 6)) == [Guess()]


def test_a_draft_is_no_longer_than_what_the_output_may_still_have(source):
    short = SequenceParams(sampling=SamplingParams(temperature=0, max_tokens=3))
    (guess,) = ask(source, (opened(PROMPT, short, output=[1]), (), 6))
    assert len(guess.token_ids) == 2


def test_runners_up_are_told_with_their_shares(source, dense):
    (guess,) = ask(source, (opened(PROMPT), (), 3))
    assert len(guess.alternatives) == len(guess.token_ids) + 1
    best = row_after(dense, PROMPT).to(torch.float64).topk(3)
    shares = best.values.softmax(0).tolist()
    assert guess.token_ids[0] == best.indices[0]
    assert [token_id for token_id, _ in guess.alternatives[0]] == best.indices[1:].tolist()
    assert [share for _, share in guess.alternatives[0]] == pytest.approx(shares[1:], abs=1e-5)


def test_a_token_too_doubtful_to_draft_is_an_alternative_behind_the_draft(source, dense):
    guesses = {start: ask(source, (opened([start]), (), 8))[0] for start in range(VOCAB_SIZE)}
    start, guess = next((start, guess) for start, guess in guesses.items() if 0 < len(guess.token_ids) < 8)
    row = row_after(dense, [start, *guess.token_ids])
    assert guess.alternatives[-1][0][0] == int(row.argmax())
    assert len(guess.alternatives[-1]) == 3


@pytest.mark.parametrize(
    "params",
    [
        SequenceParams(sampling=SamplingParams(logit_bias={VOCAB_SIZE: 1.0})),
        SequenceParams(sampling=SamplingParams(temperature=-1.0)),
        SequenceParams(reasoning_limit=ReasoningLimit(max_tokens=0, end_token_id=VOCAB_SIZE)),
    ],
)
def test_a_sequence_that_cannot_be_served_gets_empty_guesses(source, params):
    assert ask(source, (opened(PROMPT, params), (), 4)) == [Guess()]


def test_tokens_beyond_the_vocabulary_get_empty_guesses_and_others_their_own(source, dense):
    sequence = opened(PROMPT)
    guesses = ask(source, (opened([VOCAB_SIZE]), (), 4), (sequence, (VOCAB_SIZE,), 4), (sequence, (), 4))
    assert guesses[:2] == [Guess(), Guess()]
    assert_is_own_continuation(dense, guesses[2], PROMPT, 4)


def test_a_text_longer_than_the_model_takes_gets_an_empty_guess(source):
    sequence = opened(np.arange(1025) % VOCAB_SIZE)
    assert ask(source, (sequence, (), 4)) == [Guess()]


def test_where_the_cache_is_too_small_for_all_texts_some_are_drafted_for_in_every_call(dense, executor):
    small = DraftModel(dense, 8 * dense.kv_bytes_per_block(draft_model.BLOCK_SIZE))
    source = ModelSource(small, executor)
    sequences = [opened([start, *range(30)]) for start in range(4)]
    for _ in range(12):
        ask(source, *((sequence, (), 2) for sequence in sequences))
        for sequence in sequences:
            sequence.extend(array("I", [3, 4]))
        small.blocks.check()
    guesses = ask(source, *((sequence, (), 2) for sequence in sequences))
    assert any(guess.token_ids for guess in guesses)


def test_a_text_that_grows_while_it_waits_is_copied_as_it_was_and_not_on_the_event_loop(
    source, executor, dense, monkeypatch
):
    copied_by, of = [], Text.of

    def copy(question):
        copied_by.append(threading.current_thread())
        return of(question)

    async def grow_meanwhile():
        may_go_on = threading.Event()
        executor.submit(may_go_on.wait)
        sequence = opened(PROMPT)
        asked = asyncio.create_task(
            source.guess([Question(sequence=sequence, assumed=(7,), max_num_tokens=4)])
        )
        await asyncio.sleep(0)
        sequence.extend(array("I", [1, 2, 3]))
        may_go_on.set()
        return await asked

    monkeypatch.setattr(Text, "of", copy)
    (guess,) = asyncio.run(grow_meanwhile())
    assert_is_own_continuation(dense, guess, [*PROMPT, 7], 4)
    assert threading.current_thread() not in copied_by


def fail(*_):
    raise RuntimeError("out of memory")


def test_a_pass_that_fails_leaves_nothing_that_counts_as_cached(source, dense, monkeypatch):
    sequence = opened(PROMPT)
    with monkeypatch.context() as broken:
        broken.setattr(Transformer, "forward", fail)
        with pytest.raises(RuntimeError):
            ask(source, (sequence, (), 4))
    (guess,) = ask(source, (sequence, (), 4))
    assert_is_own_continuation(dense, guess, PROMPT, 4)


def load(directories, executor, **changes):
    directories = {"model_dir": directories["dense"], "target_dir": directories["moe"]} | changes
    return ModelSource.load(**directories, kv_cache_bytes=ROOM, num_threads=1, executor=executor)


def test_a_loaded_checkpoint_drafts(directories, executor, dense):
    (guess,) = ask(load(directories, executor), (opened(PROMPT), (), 4))
    assert_is_own_continuation(dense, guess, PROMPT, 4)


def test_another_vocabulary_than_the_targets_is_refused(directories, executor, tmp_path):
    other = write_checkpoint(tmp_path / "other", llama_config(vocab_size=98))
    with pytest.raises(ConfigError, match=r"OUTRIDER_DRAFTER_MODEL_DIR.*98.*97"):
        load(directories, executor, model_dir=other)


@pytest.mark.parametrize("name", ["model_dir", "target_dir"])
def test_a_directory_without_a_model_is_named(directories, executor, name, tmp_path):
    with pytest.raises(ConfigError, match=f"OUTRIDER_DRAFTER_{name.upper()}: .*config.json"):
        load(directories, executor, **{name: tmp_path})
