"""Steps in buckets on two ranks, on the kernels for GPUs, interpreted: bits of steps as they are."""

import os
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from outrider.model.distributed_ranks import DistributedRanks
from outrider.model.graphs import make_buckets
from outrider.model.placement import Placement
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, interpreted_config, write_checkpoint
from tests.unit.model.sequences import Driver, Sequence

NUM_RANKS = 2
BUCKETS = make_buckets((2,), (1, 3), max_num_rows=4)
STEPS = [(1,), (1, 1)]  # exact, and padded


def compute(rank: int, directory: str) -> None:
    """Writes what a rank computed without buckets and with them."""
    # As many as the model splits over; others of this machine compute too.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{directory}/store", rank=rank, world_size=NUM_RANKS)
    ranks = DistributedRanks()
    placement = Placement.balanced(num_layers=1, num_experts=4, num_redundant=2, num_ranks=NUM_RANKS)
    model = Transformer.load(Path(directory), backend="triton", ranks=ranks, placement=placement)
    ranks.traffic.num_calls = 0
    plain = run(model, ())
    calls = ranks.traffic.num_calls
    found = {"plain": plain, "bucketed": run(model, BUCKETS), "calls per step": calls / len(STEPS)}
    torch.save(found, os.path.join(directory, f"found.{rank}"))
    dist.destroy_process_group()


def run(model: Transformer, buckets) -> list[torch.Tensor]:
    driver, source = Driver(model, num_blocks=2, buckets=buckets), random.Random(7)
    sequences = [Sequence([source.randrange(VOCAB_SIZE) for _ in range(4)]) for _ in range(2)]
    return [torch.cat(driver.step(list(zip(sequences, sizes, strict=False)))) for sizes in STEPS]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "first_k_dense_replace": 0}
    config = interpreted_config(**sizes)
    directory = write_checkpoint(tmp_path_factory.mktemp("ranks"), config)
    spawn(compute, (str(directory),), NUM_RANKS)
    return [torch.load(directory / f"found.{rank}") for rank in range(NUM_RANKS)]


def test_steps_in_buckets_have_the_bits_of_steps_as_they_are(found):
    for one, other in zip(found[0]["plain"], found[0]["bucketed"], strict=True):
        assert torch.equal(one, other)


def test_every_rank_has_the_same_logits(found):
    for name in ("plain", "bucketed"):
        for one, other in zip(found[0][name], found[1][name], strict=True):
            assert torch.equal(one, other)


def test_each_layer_exchanges_twice_and_a_step_ends_with_its_logits(found):
    assert [item["calls per step"] for item in found] == [3, 3]
