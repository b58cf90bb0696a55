"""Hidden vectors for the draft head: whose they are, that they are right, and how many are sent."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.draft_head import FEATURE_DTYPE
from outrider.params import SamplingParams, SequenceParams
from outrider.rpc.config import ConfigError
from outrider.rpc.errors import InvalidArgument
from services.worker.check import check_batch
from services.worker.features import MAX_NUM_KNOWN_TOKENS, TappedRows, choose_rows, fair_shares
from services.worker.messages import Batch, SequenceStep
from tests.groups import load_stepper, prompt_of, scheduled
from tests.unit.model.random_heads import head_config, write_head

SIZE = 48
NUM_OUTPUT_TOKENS = 12


@pytest.fixture(scope="module")
def head_dir(tmp_path_factory):
    return write_head(tmp_path_factory.mktemp("head"), head_config())


@pytest.fixture(scope="module")
def with_head(model_dir, head_dir):
    return load_stepper(model_dir, head_dir=head_dir)


@pytest.fixture
def stepper_with_head(with_head):
    yield with_head
    with_head.forget_all()


class Run:
    """Steps sequences that want features, and joins what comes of them."""

    def __init__(self, stepper):
        self.stepper = stepper
        self.step_id = 0
        self.features = {}

    def step(self, sequences, *, max_rows=10**6, draft=lambda sequence: (), wants_features=True):
        self.step_id += 1
        steps = [
            sequence.step(max_rows=max_rows, draft=draft(sequence), wants_features=wants_features)
            for sequence in sequences
        ]
        batch = Batch(step_id=self.step_id, steps=steps)
        check_batch(batch, self.stepper.sequences, self.stepper.facts)
        output = self.stepper.run(batch)
        for sequence, step in zip(sequences, steps, strict=True):
            outcome = output.outcomes.get(sequence.id)
            if not isinstance(outcome, Exception):
                sequence.commit(step, outcome)
        for item in output.to_proto().features:
            rows = torch.frombuffer(bytearray(item.rows), dtype=FEATURE_DTYPE).view(-1, SIZE)
            known = self.features.setdefault(item.sequence_id, [])
            assert item.offset == len(known)
            known.extend(rows)
        return output

    def until(self, sequences, **options):
        while running := [s for s in sequences if len(s.output) < NUM_OUTPUT_TOKENS]:
            self.step(running, **options)
        return {sequence_id: torch.stack(rows) for sequence_id, rows in self.features.items()}


def sequences():
    kinds = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.7, "presence_penalty": 0.5},
    ]
    return [
        scheduled(index, prompt_of(index, 4 + 21 * index), max_tokens=NUM_OUTPUT_TOKENS, **kind)
        for index, kind in enumerate(kinds)
    ]


def run_alone(stepper):
    alone, features = sequences(), {}
    for sequence in alone:
        features |= Run(stepper).until([sequence])
        stepper.forget_all()
    return alone, features


def whole(stepper, token_ids):
    """The vectors of a text, computed in one pass of its own."""
    projection, model = stepper._tap._projection, stepper._runner.model
    rows = torch.arange(len(token_ids))
    batch = ForwardBatch(
        token_ids=torch.tensor(token_ids),
        positions=rows,
        slots=rows,
        spans=(Span(first_row=0, num_rows=len(rows), num_context=len(rows), block_ids=list(range(8))),),
        logit_rows=rows,
        tap=Tap(rows=rows, layers=projection.layers),
    )
    return projection(model.forward(batch, model.new_kv_cache(8, 16)).tapped)


def test_every_token_that_is_kept_has_its_vector(stepper_with_head):
    alone, features = run_alone(stepper_with_head)
    for sequence in alone:
        assert torch.equal(features[sequence.id], whole(stepper_with_head, sequence.tokens[:-1]))


@pytest.mark.parametrize("max_rows", [64, 5])
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_vectors_have_the_same_bits_in_company_in_chunks_and_with_drafts(stepper_with_head, max_rows, right):
    alone, expected = run_alone(stepper_with_head)
    truth, together = {sequence.id: sequence.tokens for sequence in alone}, sequences()
    generator = np.random.default_rng(int(10 * right))

    def draft(sequence):
        known = len(sequence.tokens)
        guesses = truth[sequence.id][known : known + int(generator.integers(0, 5))]
        return [token if generator.random() < right else (token + 1) % 90 for token in guesses]

    features = Run(stepper_with_head).until(together, max_rows=max_rows, draft=draft)
    assert [s.tokens for s in together] == [s.tokens for s in alone]
    for sequence_id, rows in expected.items():
        # A draft that ended the output was computed too.
        assert len(features[sequence_id]) - len(rows) in (0, 1)
        assert torch.equal(features[sequence_id][: len(rows)], rows)


def test_asking_for_vectors_changes_no_token_and_no_logprob(stepper_with_head, stepper):
    outputs = []
    for group, wants_features in [(stepper_with_head, True), (stepper_with_head, False), (stepper, False)]:
        sequence = scheduled(0, prompt_of(0, 30), temperature=0.8, num_logprobs=3)
        run = Run(group)
        for _ in range(8):
            run.step([sequence], wants_features=wants_features)
        outputs.append((sequence.output, sequence.logprobs))
        assert bool(run.features) == wants_features
        group.forget_all()
    assert outputs[0] == outputs[1] == outputs[2]


def test_only_those_who_ask_get_vectors(stepper_with_head):
    asking, other = scheduled(0, prompt_of(0, 9)), scheduled(1, prompt_of(1, 9))
    steps = [other.step(), asking.step(wants_features=True)]
    output = stepper_with_head.run(Batch(step_id=1, steps=steps))
    assert [(item.sequence_id, item.offset) for item in output.features] == [(0, 0)]
    rows = torch.frombuffer(bytearray(output.features[0].rows), dtype=FEATURE_DTYPE).view(-1, SIZE)
    assert torch.equal(rows, whole(stepper_with_head, asking.tokens[:9]))


def test_a_sequence_that_failed_has_no_vectors(stepper_with_head):
    params = SequenceParams(sampling=SamplingParams(bad_words=tuple((token,) for token in range(97))))
    bad, good = scheduled(0, prompt_of(0, 9), params=params), scheduled(1, prompt_of(1, 9))
    steps = [sequence.step(wants_features=True) for sequence in (bad, good)]
    output = stepper_with_head.run(Batch(step_id=1, steps=steps))
    assert isinstance(output.outcomes[0], InvalidArgument)
    assert [item.sequence_id for item in output.features] == [1]


def step_of(sequence_id, *, num_computed=0, num_new=1, num_drafts=0, wants_features=True):
    return SequenceStep(
        sequence_id=sequence_id,
        start=None,
        num_computed_tokens=num_computed,
        num_new_tokens=num_new,
        draft_token_ids=[0] * num_drafts,
        new_block_ids=[],
        wants_features=wants_features,
    )


def test_of_a_prompt_the_last_tokens_have_vectors():
    before = step_of(0, num_new=500)
    within = step_of(0, num_computed=500, num_new=700)
    num_known = 2000
    assert choose_rows([(before, num_known)], 10**6) == []
    first = num_known - MAX_NUM_KNOWN_TOKENS
    expected = TappedRows(sequence_id=0, offset=first, first_row=first - 500, num_rows=1200 - first)
    assert choose_rows([(within, num_known)], 10**6) == [expected]


def test_rows_over_the_limit_are_left_out_the_oldest_of_those_that_have_most():
    steps = [
        (step_of(0, num_computed=50, num_drafts=3), 51),
        (step_of(1, num_new=9, wants_features=False), 9),
        (step_of(2, num_new=20), 20),
        (step_of(3, num_computed=7), 8),
    ]
    assert choose_rows(steps, 10) == [
        TappedRows(sequence_id=0, offset=50, first_row=0, num_rows=4),
        TappedRows(sequence_id=2, offset=12, first_row=4 + 9 + 12, num_rows=8),
        TappedRows(sequence_id=3, offset=7, first_row=4 + 9 + 20, num_rows=1),
    ]


def test_a_long_prompt_takes_no_vectors_from_sequences_behind_it():
    steps = [(step_of(0, num_new=1000), 1000), *((step_of(number), 1) for number in range(1, 51))]
    tapped = {rows.sequence_id: rows.num_rows for rows in choose_rows(steps, 100)}
    assert tapped == {0: 50, **dict.fromkeys(range(1, 51), 1)}


def test_drafts_that_are_wrong_take_no_vectors_from_others():
    steps = [(step_of(number, num_drafts=8), 1) for number in range(10)]
    assert [rows.num_rows for rows in choose_rows(steps, 10)] == [9] * 10


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 300))
def test_shares_are_fair_and_use_all_there_is(wanted, total):
    shares = fair_shares(wanted, total)
    assert all(share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(total, sum(wanted))
    cut = [share for share, want in zip(shares, wanted, strict=True) if share < want]
    assert all(share <= min(cut) + 1 for share in shares) if cut else True


def test_vectors_of_accepted_drafts_over_the_limit_are_left_out_too(stepper_with_head, monkeypatch):
    alone, _ = run_alone(stepper_with_head)
    monkeypatch.setattr(stepper_with_head._tap, "_max_num_rows", 4)
    guessed = scheduled(0, prompt_of(0, 4), max_tokens=NUM_OUTPUT_TOKENS, temperature=0)
    prefill = stepper_with_head.run(Batch(step_id=1, steps=[first := guessed.step(wants_features=True)]))
    guessed.commit(first, prefill.outcomes[0])
    step = guessed.step(draft=alone[0].tokens[5:11], wants_features=True)
    output = stepper_with_head.run(Batch(step_id=2, steps=[step]))
    assert output.outcomes[0].num_accepted_tokens == 6
    (features,) = output.features
    assert (features.offset, len(features.rows)) == (4 + 7 - 4, 4 * SIZE * FEATURE_DTYPE.itemsize)
    assert torch.equal(
        torch.frombuffer(bytearray(features.rows), dtype=FEATURE_DTYPE).view(-1, SIZE),
        whole(stepper_with_head, alone[0].tokens[:11])[7:],
    )


def test_vectors_are_refused_where_there_is_no_head(stepper):
    sequence = scheduled(0, prompt_of(0, 9))
    with pytest.raises(InvalidArgument, match="no hidden vectors") as caught:
        check_batch(
            Batch(step_id=1, steps=[sequence.step(wants_features=True)]), stepper.sequences, stepper.facts
        )
    assert caught.value.field == "batch.sequences[0].wants_features"


def test_a_head_is_named_in_the_facts_and_changes_no_numerics(stepper_with_head, stepper):
    with_head, without = stepper_with_head.facts.to_proto(), stepper.facts.to_proto()
    assert (with_head.feature_size, without.feature_size) == (SIZE, 0)
    assert with_head.numerics_id == without.numerics_id
    assert with_head.device == without.device
    assert with_head.device.startswith("cpu ")
    assert with_head.device.endswith(" x1")


def test_a_wrong_head_is_refused_by_its_variable(model_dir, tmp_path):
    directory = write_head(tmp_path / "head", head_config(eagle_aux_hidden_state_layer_ids=[1, 2, 9]))
    with pytest.raises(ConfigError, match=r"OUTRIDER_WORKER_HEAD_DIR: .*eagle_aux_hidden_state_layer_ids"):
        load_stepper(model_dir, head_dir=directory)
