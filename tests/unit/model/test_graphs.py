"""Steps in buckets are steps as they are, bit for bit: neither padding nor the bucket shows."""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.model.batch import ForwardBatch, Span
from outrider.model.graphs import Bucket, make_buckets
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, interpreted_config, llama_config, write_checkpoint
from tests.unit.model.sequences import BLOCK_SIZE, Driver, Sequence

TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 128}
CONFIGS = {
    "latent-moe": interpreted_config(**TINY, first_k_dense_replace=0, n_shared_experts=0),
    "grouped-dense": llama_config(**TINY, num_attention_heads=2, num_key_value_heads=1),
}
NUM_BLOCKS = 12
BUCKETS = make_buckets((1, 4), (1, 2, 4, 8), max_num_rows=8)
# Rows of each sequence in each step: exact and padded buckets, the largest one full, and a step too large.
STEPS = [(1,), (3,), (1, 1), (2, 2, 1), (1, 2, 2, 3), (1, 1, 1, 1, 1)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A driver and what each of its steps gave."""

    driver: Driver
    logits: list[Tensor]
    tapped: list[Tensor | None]
    num_distinct_experts: list[list[int]]


@pytest.fixture(scope="module", params=CONFIGS)
def runs(request, tmp_path_factory) -> tuple[Run, Run]:
    """The same steps without buckets and with them, into the same blocks."""
    directory = tmp_path_factory.mktemp(request.param)
    model = Transformer.load(write_checkpoint(directory, CONFIGS[request.param]), backend="triton")
    return run(model), run(model, BUCKETS)


def run(model: Transformer, buckets=()) -> Run:
    driver = Driver(model, num_blocks=NUM_BLOCKS, buckets=buckets, tap_layers=(0, 1))
    found = Run(driver=driver, logits=[], tapped=[], num_distinct_experts=[])
    source = random.Random(7)
    sequences = [Sequence([source.randrange(VOCAB_SIZE) for _ in range(40)]) for _ in range(5)]
    for sizes in STEPS:
        work = [(sequence, size) for sequence, size in zip(sequences, sizes, strict=False) if size]
        found.logits.append(torch.cat(driver.step(work)))
        found.tapped.append(driver.tapped)
        found.num_distinct_experts.append(driver.num_distinct_experts)
    return found


def test_there_is_a_bucket_for_every_pair_that_steps_can_have():
    buckets = make_buckets((1, 2), (1, 2, 40), max_num_rows=32)
    # Two sequences have two rows at least, one has 16 at most, and no step has 40.
    assert {(bucket.num_sequences, bucket.num_rows) for bucket in buckets} == {(1, 1), (1, 2), (2, 2)}


def test_a_bucket_is_exact_where_every_smaller_step_has_one_of_its_own():
    buckets = make_buckets((1,), (4, 1, 2), max_num_rows=8)
    assert [(bucket.num_rows, bucket.is_exact) for bucket in buckets] == [(1, True), (2, True), (4, False)]


def batch_of(*num_rows: int) -> ForwardBatch:
    rows = torch.arange(sum(num_rows))
    spans = [Span(first_row=0, num_rows=num, num_context=num, block_ids=[0]) for num in num_rows]
    return ForwardBatch(token_ids=rows, positions=rows, slots=rows, spans=tuple(spans), logit_rows=rows)


@pytest.mark.parametrize(
    ("num_rows", "expected"), [((16,), True), ((17,), False), ((17, 15), True), ((31, 2), False)]
)
def test_a_bucket_is_not_for_chunks_of_prompts(num_rows, expected):
    bucket = Bucket(num_rows=64, num_sequences=4, min_num_rows=1)
    assert bucket.holds(batch_of(*num_rows)) is expected


@pytest.mark.parametrize(
    "config", [interpreted_config(q_lora_rank=24), llama_config()], ids=["latent", "grouped"]
)
@torch.inference_mode()
def test_a_step_asks_the_device_for_no_number(config, tmp_path, monkeypatch):
    # On the meta device there are none: whatever asks for one raises, and so do tensors of the host.
    monkeypatch.setattr(Launch, "run", lambda launch: None)
    model = Transformer.load(write_checkpoint(tmp_path, config), backend="triton", device="meta")
    driver = Driver(model, num_blocks=NUM_BLOCKS, buckets=BUCKETS, tap_layers=(0, 2))
    for bucket, recording in driver.runner.recordings.items():
        assert recording.compute().logits.shape == (bucket.num_rows, VOCAB_SIZE)


def test_logits_and_hidden_vectors_have_the_bits_of_a_step_without_bucket(runs):
    plain, bucketed = runs
    for one, other in zip(plain.logits + plain.tapped, bucketed.logits + bucketed.tapped, strict=True):
        assert torch.equal(one, other)


def test_the_experts_of_padding_are_not_counted(runs):
    plain, bucketed = runs
    assert plain.num_distinct_experts == bucketed.num_distinct_experts


def test_padding_is_written_into_the_spare_block_alone(runs):
    owned = NUM_BLOCKS * BLOCK_SIZE
    caches = [run.driver.cache.layers for run in runs]
    for before, after in zip(*caches, strict=True):
        assert torch.equal(before[:owned], after[:owned])
        assert not before[owned:].any()
        assert after[owned:].any()
        assert after[owned:].isfinite().all()


def test_every_bucket_is_recorded_and_reported(runs):
    _, bucketed = runs
    assert bucketed.driver.num_recorded == [(number, len(BUCKETS)) for number in range(1, len(BUCKETS) + 1)]
