"""What a step makes of its batch, on a real model."""

import numpy as np
import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider.params import Grammar, ReasoningLimit, SamplingParams, SequenceParams
from outrider.rpc.errors import Internal, InvalidArgument, Unimplemented
from services.worker import sequence as sequence_module
from services.worker.messages import Batch
from services.worker.warm_up import largest_batch, small_batches
from tests.groups import BLOCK_SIZE, END_TOKEN, load_stepper, prompt_of, scheduled
from tests.unit.worker.runs import Run

KINDS = [
    {"temperature": 0, "num_logprobs": 2},
    {"temperature": 0.8, "seed": 3, "num_logprobs": 0},
    {"temperature": 1.2, "seed": 4, "top_p": 0.9, "presence_penalty": 0.6},
    {"temperature": 0.7, "seed": 5, "top_k": 8, "repetition_penalty": 1.2},
]


def sequences(num_output_tokens):
    return [
        scheduled(index, prompt_of(index, 3 + 9 * index), max_tokens=num_output_tokens, **kind)
        for index, kind in enumerate(KINDS)
    ]


def run_alone(stepper, num_output_tokens):
    """Returns output and log-probabilities of each sequence without neighbours or drafts, in one prefill."""
    alone = sequences(num_output_tokens)
    for sequence in alone:
        Run(stepper).until([sequence], num_output_tokens)
        stepper.forget_all()
    return alone


@pytest.mark.parametrize("max_rows", [64, 5])
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_output_is_the_same_in_company_in_chunks_and_with_drafts(stepper, max_rows, right):
    num_output_tokens = 14
    alone = run_alone(stepper, num_output_tokens)
    together = sequences(num_output_tokens)
    truth = {sequence.id: sequence.tokens for sequence in alone}
    generator = np.random.default_rng(int(10 * right))

    def draft(sequence):
        known = len(sequence.tokens)
        guesses = truth[sequence.id][known : known + int(generator.integers(0, 5))]
        return [token if generator.random() < right else (token + 1) % 90 for token in guesses]

    run = Run(stepper)
    assert run.until(together, num_output_tokens, max_rows=max_rows, draft=draft) == [s.output for s in alone]
    assert [s.logprobs for s in together] == [s.logprobs for s in alone]
    if right == 1 and max_rows == 64:
        assert run.num_steps < num_output_tokens


def test_a_sequence_started_in_the_middle_goes_on_alike(stepper):
    (whole, *_) = run_alone(stepper, 14)
    resumed = scheduled(0, whole.tokens[: whole.num_prompt_tokens], output=whole.output[:6], **KINDS[0])
    Run(stepper).until([resumed], 14)
    assert resumed.output == whole.output


def test_a_sequence_with_tokens_left_to_compute_has_no_output(stepper):
    output = Run(stepper).step([scheduled(0, prompt_of(0, 9), temperature=0)], max_rows=8)
    assert output.outcomes == {}
    assert len(output.num_distinct_experts) == 2
    assert all(3 <= number <= 8 for number in output.num_distinct_experts)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (SequenceParams(sampling=SamplingParams(temperature=-1)), InvalidArgument, r"must lie in \[0, 100\]"),
        (
            SequenceParams(reasoning_limit=ReasoningLimit(max_tokens=1, end_token_id=97)),
            InvalidArgument,
            "97",
        ),
        (SequenceParams(grammar=Grammar(language="regex", text="[a")), InvalidArgument, "does not compile"),
        (
            SequenceParams(sampling=SamplingParams(bad_words=((1,),), logit_bias={1: 2000.0})),
            InvalidArgument,
            "1000",
        ),
    ],
)
def test_wrong_parameters_fail_their_own_sequence_only(stepper, params, error, message):
    run = Run(stepper)
    bad, good = scheduled(1, prompt_of(1, 9), params=params), scheduled(0, prompt_of(0, 9), temperature=0)
    outcomes = run.step([bad, good], max_rows=8).outcomes
    assert isinstance(outcomes[1], error)
    with pytest.raises(error, match=message):
        raise outcomes[1]
    # A scheduler that overlooks the failure hears of it again.
    bad.num_computed = 8
    outcomes = run.step([bad, good]).outcomes
    assert isinstance(outcomes[1], error)
    assert len(good.output) == 1


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (
            SequenceParams(sampling=SamplingParams(bad_words=tuple((token,) for token in range(97)))),
            "sampling",
        ),
        (
            SequenceParams(
                sampling=SamplingParams(bad_words=((64,),)), grammar=Grammar(language="regex", text="a")
            ),
            "grammar",
        ),
    ],
)
def test_constraints_that_leave_no_token_are_named_to_the_scheduler(stepper, params, field):
    output = Run(stepper).step([scheduled(0, prompt_of(0, 9), params=params)]).to_proto()
    failure = output.outputs[0].failure
    assert (failure.code, failure.field) == (3, field)
    assert "no token" in failure.message


def test_logits_that_are_not_finite_fail_their_own_sequence_only(stepper):
    run = Run(stepper)
    bad, good = scheduled(1, prompt_of(1, 9), temperature=0), scheduled(0, prompt_of(0, 9), temperature=0)
    run.step([bad, good], max_rows=8)
    # A slot of the cache goes bad under the first sequence.
    slot = stepper._runner.kv_cache.layers[0][bad.blocks[0] * BLOCK_SIZE]
    before = slot.clone()
    slot.fill_(torch.nan)
    outcomes = run.step([bad, good]).outcomes
    slot.copy_(before)
    assert isinstance(outcomes[1], Internal)
    alone = scheduled(2, prompt_of(0, 9), temperature=0)
    run.step([alone])
    assert good.output == alone.output


def test_grammars_hold_and_report_what_they_force(stepper):
    params = SequenceParams(
        sampling=SamplingParams(stop_token_ids=(END_TOKEN,)),
        grammar=Grammar(language="regex", text="(ab|cd)xyz[0-3]"),
    )
    sequence, run = scheduled(0, prompt_of(0, 5), params=params), Run(stepper)
    first = run.step([sequence]).outcomes[0]
    spell = lambda tokens: "".join(chr(33 + token) for token in tokens)  # noqa: E731
    assert spell(first.token_ids + first.forced_token_ids) in ("abxyz", "cdxyz")
    second = run.step([sequence], draft=lambda _: first.forced_token_ids).outcomes[0]
    assert second.num_accepted_tokens == 4
    assert second.grammar_complete


@pytest.mark.parametrize("stop_token_ids", [(), (END_TOKEN,)])
def test_a_grammar_ends_its_output_at_the_same_token_with_drafts_and_resumed(stepper, stop_token_ids):
    params = SequenceParams(
        sampling=SamplingParams(stop_token_ids=stop_token_ids, min_tokens=9),
        grammar=Grammar(language="regex", text="(yes|no)"),
    )
    alone, run = scheduled(0, prompt_of(0, 5), params=params), Run(stepper)
    while not run.step([alone]).outcomes[0].grammar_complete:
        pass
    assert "".join(chr(33 + token) for token in alone.output) in ("yes", "no")
    for index, num_resumed in enumerate(range(len(alone.output) + 1), 1):
        tokens = [*alone.output, END_TOKEN, END_TOKEN]
        taken_up = scheduled(index, prompt_of(0, 5), params=params, output=tokens[:num_resumed])
        outcome = run.step([taken_up], draft=lambda _, rest=tokens[num_resumed:]: rest).outcomes[index]
        assert outcome.grammar_complete
        assert taken_up.output == alone.output


def test_a_model_without_a_tokenizer_takes_no_grammars(stepper, model_dir, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(model_dir / name)
    params = SequenceParams(grammar=Grammar(language="regex", text="a"))
    outcomes = Run(load_stepper(tmp_path)).step([scheduled(0, prompt_of(0, 5), params=params)]).outcomes
    assert isinstance(outcomes[0], Unimplemented)


def test_a_released_sequence_is_forgotten_and_may_start_again(stepper):
    run, first = Run(stepper), scheduled(0, prompt_of(0, 9), temperature=0)
    run.step([first])
    again = scheduled(0, prompt_of(0, 9), temperature=0)
    run.step([again], released=[0, 77])
    assert again.output == first.output
    assert list(stepper.sequences) == [0]


def test_a_sequence_is_one_span_below_the_request_s(stepper, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(sequence_module, "tracer", provider.get_tracer)
    run, sequence = Run(stepper), scheduled(0, prompt_of(0, 9), temperature=0)
    step = sequence.step()
    object.__setattr__(step.start, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    sequence.commit(step, stepper.run(Batch(step_id=1, steps=[step])).outcomes[0])
    run.step([sequence])
    assert not exporter.get_finished_spans()
    run.step([], released=[0])
    (span,) = exporter.get_finished_spans()
    assert span.parent is not None
    assert format(span.parent.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert dict(span.attributes or {}) == {
        "outrider.num_prompt_tokens": 9, "outrider.num_output_tokens": 2, "outrider.num_steps": 2,
    }  # fmt: skip


def test_warming_up_leaves_no_sequence(stepper):
    stepper.warm_up([*small_batches(stepper.facts), largest_batch(stepper.facts)])
    assert stepper.sequences == {}
