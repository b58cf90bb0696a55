"""Drafts, right or wrong, change neither tokens nor log-probabilities nor where the output ends."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.model.sampling import GrammarCompiler, NoToken, Output
from outrider.params import Grammar, ReasoningLimit, SamplingParams, SequenceParams
from tests.unit.sampling.strategies import (
    VOCAB_SIZE,
    is_over,
    logits_after,
    sequence_params,
    state_of,
    step,
    token_ids,
)

prompts = st.lists(token_ids, min_size=1, max_size=6)


def generate(params, prompt, drafter, logits_after=logits_after, grammar=None, max_num_steps=80):
    """Steps one sequence to its end; returns tokens, log-probabilities, failure and number of steps."""
    state, logprobs, num_steps = state_of(params, prompt, grammar=grammar), [], 0
    while not is_over(state) and num_steps < max_num_steps:
        before = state.num_tokens
        (outcome,) = step([state], [drafter(state.token_ids.tolist())], logits_after)
        num_steps += 1
        if isinstance(outcome, NoToken):
            return state.token_ids.tolist(), logprobs, outcome, num_steps
        assert state.token_ids[before:].tolist() == outcome.token_ids
        logprobs += outcome.logprobs or ()
    return state.token_ids.tolist(), logprobs, None, num_steps


def mixed_drafter(truth, generator):
    """Returns a drafter that knows the truth and spoils some of it."""

    def draft(tokens):
        length = int(generator.integers(0, 6))
        guesses = [*truth[len(tokens) : len(tokens) + length]]
        guesses += generator.integers(0, VOCAB_SIZE, size=length - len(guesses)).tolist()
        if guesses and generator.random() < 0.6:
            guesses[int(generator.integers(len(guesses)))] = int(generator.integers(VOCAB_SIZE))
        return guesses

    return draft


@settings(max_examples=30)
@given(sequence_params, prompts, st.integers(0, 2**32))
def test_drafts_change_nothing(params, prompt, seed):
    tokens, logprobs, failure, num_steps = generate(params, prompt, lambda tokens: [])
    drafter = mixed_drafter(tokens, np.random.default_rng(seed))
    assert generate(params, prompt, drafter)[:3] == (tokens, logprobs, failure)
    perfect = generate(params, prompt, lambda known: tokens[len(known) : len(known) + 4])
    assert perfect[:3] == (tokens, logprobs, failure)
    if num_steps > 8:
        assert perfect[3] <= num_steps / 4 + 1


@settings(max_examples=12)
@given(st.lists(st.tuples(sequence_params, prompts), min_size=2, max_size=4), st.integers(0, 2**32))
def test_neighbours_in_the_batch_change_nothing(sequences, seed):
    truths = [generate(params, prompt, lambda tokens: [])[0] for params, prompt in sequences]
    states = [state_of(params, prompt) for params, prompt in sequences]
    drafters = [mixed_drafter(truth, np.random.default_rng(seed)) for truth in truths]
    running = list(zip(states, drafters, strict=True))
    while running:
        outcomes = step([s for s, _ in running], [draft(s.token_ids.tolist()) for s, draft in running])
        running = [
            pair
            for pair, outcome in zip(running, outcomes, strict=True)
            if isinstance(outcome, Output) and not is_over(pair[0])
        ]
    assert [state.token_ids.tolist() for state in states] == truths


@settings(max_examples=12)
@given(sequence_params, prompts, st.data())
def test_a_sequence_taken_up_from_its_tokens_goes_on_alike(params, prompt, data):
    tokens, *_ = generate(params, prompt, lambda tokens: [])
    cut = data.draw(st.integers(len(prompt), len(tokens)))
    state = state_of(params, prompt, tokens[len(prompt) : cut])
    while not is_over(state) and isinstance(step([state], [[]])[0], Output):
        pass
    assert state.token_ids.tolist() == tokens


def greedy(**values):
    return SequenceParams(sampling=SamplingParams(temperature=0, **values))


def follow(*tokens):
    """Returns logits under which token n at position n wins."""
    return lambda known: np.eye(VOCAB_SIZE, dtype=np.float32)[tokens[len(known)]]


def outcome_of(params, draft, logits):
    state = state_of(params, [0])
    (outcome,) = step([state], [draft], logits)
    return outcome, state.token_ids.tolist()


@pytest.mark.parametrize(
    ("draft", "tokens", "num_accepted"),
    [
        ([], [1], 0),
        ([1], [1, 2], 1),
        ([9], [1], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 9, 3], [1, 2], 1),
    ],
)
def test_output_is_the_right_drafts_and_the_bonus(draft, tokens, num_accepted):
    outcome, known = outcome_of(greedy(), draft, follow(0, 1, 2, 3, 4, 5))
    assert (outcome.token_ids, outcome.num_accepted_tokens) == (tokens, num_accepted)
    assert known == [0, *tokens]


def test_nothing_follows_a_stop_token_among_the_accepted():
    outcome, _ = outcome_of(greedy(stop_token_ids=(2,)), [1, 2, 3], follow(0, 1, 2, 3, 4))
    assert (outcome.token_ids, outcome.num_accepted_tokens) == ([1, 2], 2)


def test_output_ends_at_max_tokens():
    outcome, _ = outcome_of(greedy(max_tokens=2), [1, 2, 3], follow(0, 1, 2, 3, 4))
    assert outcome.token_ids == [1, 2]


def test_logits_that_are_not_finite_fail_only_their_own_sequence():
    def logits(known):
        row = follow(0, 1, 2, 3)(known)
        row[5] = np.nan if known[0] == 7 else row[5]
        return row

    states = [state_of(greedy(), [7]), state_of(greedy(), [0])]
    failed, good = step(states, [[], []], logits)
    assert failed == NoToken(finite=False)
    assert good.token_ids == [1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_counts_only_when_it_is_reached(value):
    def logits(known):
        row = follow(0, 1, 2, 3, 4)(known)
        row[9] = value if len(known) == 3 else row[9]
        return row

    wrong, _ = outcome_of(greedy(), [9, 2], logits)
    assert wrong.token_ids == [1]
    right, _ = outcome_of(greedy(), [1, 2], logits)
    # The next step computes the last token again and fails as it would have without drafts.
    assert (right.token_ids, right.num_accepted_tokens) == ([1, 2], 1)


def test_constraints_that_leave_no_token_fail_the_sequence():
    everything = tuple((token_id,) for token_id in range(VOCAB_SIZE))
    outcome, _ = outcome_of(greedy(bad_words=everything), [], follow(0, 1))
    assert outcome == NoToken(finite=True)


def test_logprobs_are_those_of_the_raw_distribution_with_ties_by_lowest_token():
    def logits(known):
        return np.array([1, 3, 3, 0, 3] + [-9] * (VOCAB_SIZE - 5), dtype=np.float32)

    params = greedy(num_logprobs=2, logit_bias={3: 100.0})
    outcome, _ = outcome_of(params, [], logits)
    exact = logits([]) - np.log(np.exp(logits([]).astype(np.float64)).sum())
    (entry,) = outcome.logprobs
    assert outcome.token_ids == [3]
    assert entry.logprob == pytest.approx(exact[3], abs=1e-6)
    assert [token_id for token_id, _ in entry.top] == [1, 2]
    assert [logprob for _, logprob in entry.top] == pytest.approx([exact[1], exact[2]], abs=1e-6)


# One token per character, so that the tests can spell what they mean.
CHARACTERS = '{}":,ab01n\xc3\xa9'
STOP = 20
TINY_TOKENIZER = Path(__file__).parents[3] / "models" / "tiny" / "tokenizer.json"


@pytest.fixture(scope="module")
def compiler():
    vocab = {character: index for index, character in enumerate(CHARACTERS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    tokenizer |= {"pre_tokenizer": byte_level, "decoder": byte_level}
    tokenizer |= {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return GrammarCompiler(json.dumps(tokenizer), VOCAB_SIZE)


def constrained(language, text, seed=0, **values):
    sampling = SamplingParams(**({"stop_token_ids": (STOP,), "max_tokens": 40} | values))
    return SequenceParams(sampling=sampling, seed=seed, grammar=Grammar(language=language, text=text))


def spell(tokens):
    return "".join(CHARACTERS[token] for token in tokens if token != STOP)


@settings(max_examples=15)
@given(st.integers(0, 2**53), st.integers(0, 2**32))
def test_output_conforms_to_its_grammar_with_and_without_drafts(compiler, seed, draft_seed):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["a", "b", "ab"]}, "n": {"enum": [0, 1, 10]}},
        "required": ["a", "n"],
        "additionalProperties": False,
    }
    params = constrained("json_schema", json.dumps(schema), seed)

    def run(drafter):
        state = compiler.compile(params.grammar, params.sampling.stop_token_ids)
        return generate(params, [0], drafter, grammar=state)[:3]

    plain = run(lambda tokens: [])
    value = json.loads(spell(plain[0][1:]))
    assert value["a"] in ("a", "b", "ab")
    assert value["n"] in (0, 1, 10)
    assert STOP not in plain[0]
    assert run(mixed_drafter(plain[0], np.random.default_rng(draft_seed))) == plain
    assert run(lambda known: plain[0][len(known) : len(known) + 5]) == plain


def test_forced_tokens_and_completion_are_reported(compiler):
    params = constrained("regex", "ab:(0|1)n")
    grammar = compiler.compile(params.grammar, params.sampling.stop_token_ids)
    state = state_of(params, [0], grammar=grammar)
    (first,) = step([state], [[]])
    assert spell(first.token_ids + first.forced_token_ids) == "ab:"
    (second,) = step([state], [first.forced_token_ids])
    assert second.num_accepted_tokens == 2
    assert spell(second.forced_token_ids) == "n"
    assert not second.grammar_complete
    (third,) = step([state], [[]])
    assert (spell(third.token_ids), third.grammar_complete) == ("n", True)


@pytest.mark.parametrize("values", [{}, {"min_tokens": 9}, {"stop_token_ids": ()}])
@pytest.mark.parametrize("behind", [[], [STOP], [STOP, 1], [1, 2]])
@pytest.mark.parametrize("num_resumed", [0, 1, 2])
def test_a_complete_grammar_ends_the_output_with_drafts_behind_the_end_and_resumed_at_it(
    compiler, values, behind, num_resumed
):
    params = constrained("regex", "ab", **values)
    whole = [CHARACTERS.index(character) for character in "ab"]
    grammar = compiler.compile(params.grammar, params.sampling.stop_token_ids)
    state = state_of(params, [0], whole[:num_resumed], grammar=grammar)
    (outcome,) = step([state], [[*whole[num_resumed:], *behind]])
    assert (outcome.token_ids, outcome.grammar_complete) == (whole[num_resumed:], True)
    assert outcome.num_accepted_tokens == len(outcome.token_ids)
    assert outcome.forced_token_ids == []
    assert state.token_ids.tolist() == [0, *whole]


# Two bytes of one character, a letter and the end of the thinking.
HALVES = (CHARACTERS.index("\xc3"), CHARACTERS.index("\xa9"))
THINK_END = 21


@pytest.mark.parametrize("max_tokens", range(6))
@pytest.mark.parametrize("num_drafts", [0, 1, 5])
def test_reasoning_is_not_ended_inside_a_character(compiler, max_tokens, num_drafts):
    limit = ReasoningLimit(max_tokens=max_tokens, end_token_id=THINK_END)
    grammar = Grammar(language="lark", text=f"start: /(.|\\n)*/ <[{THINK_END}]> /a/\n")
    params = dataclasses.replace(constrained("lark", grammar.text), reasoning_limit=limit, grammar=grammar)
    # The model would write that character for ever.
    biased = dataclasses.replace(params.sampling, temperature=0, logit_bias=dict.fromkeys(HALVES, 500.0))
    params = dataclasses.replace(params, sampling=biased)
    rest = max_tokens + max_tokens % 2
    expected = [0, *(HALVES * 3)[:rest], THINK_END, CHARACTERS.index("a")]

    def run(drafter):
        return generate(params, [0], drafter, grammar=compiler.compile(grammar, (STOP,)))[::2]

    assert run(lambda known: expected[len(known) :][:num_drafts]) == (expected, None)
    assert run(lambda known: [*HALVES, *HALVES][:num_drafts]) == (expected, None)


def test_a_costly_grammar_fails_its_own_sequence_at_the_costly_token_alone():
    compiler = GrammarCompiler(TINY_TOKENIZER.read_text(), 800)
    letter_a, letter_b = 64, 65
    costly_after_b = "|".join(f"[a-z]{{3,{40 + i}}}{chr(97 + i % 26)}[0-9]{{2,30}}" for i in range(60))
    grammar = Grammar(language="regex", text=f"a|b({costly_after_b})")
    params = constrained("regex", grammar.text)

    def state(*output):
        return state_of(params, [0], output, grammar=compiler.compile(grammar, (STOP,)))

    def prefer_a(known):
        return np.eye(800, dtype=np.float32)[letter_a] * 900

    neighbour, costly = state(), state(letter_b)
    assert costly.grammar is not None
    assert step([costly], [[]], prefer_a) == [NoToken(finite=True)]
    assert costly.grammar.is_too_costly
    # It has spent the limits of the lexer that both shared, and a wrong draft spends them again.
    for other in (neighbour, state()):
        (outcome,) = step([other], [[letter_b, letter_a]], prefer_a)
        assert (outcome.token_ids, outcome.grammar_complete) == ([letter_a], True)


def test_a_resumed_output_that_breaks_the_grammar_fails_the_sequence(compiler):
    params = constrained("regex", "ab")
    grammar = compiler.compile(params.grammar, params.sampling.stop_token_ids)
    state = state_of(params, [0], [CHARACTERS.index("b")], grammar=grammar)
    assert step([state], [[]]) == [NoToken(finite=True)]


def test_the_tiny_model_s_tokenizer_compiles_grammars():
    compiler = GrammarCompiler(TINY_TOKENIZER.read_text(), 800)
    state = compiler.compile(Grammar(language="regex", text="<think>[0-9]"), ())
    assert state.forced_token_ids()
