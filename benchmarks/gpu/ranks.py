"""Groups of ranks, one on each GPU: equal bits on all, graphs with collectives, and what they take."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.model_slice import BLOCK_SIZE, CONTEXT, StepSize, make_batch, step_seconds
from benchmarks.gpu.random_checkpoint import random_model
from benchmarks.gpu.stopwatch import seconds
from outrider.model.distributed_ranks import DistributedRanks
from outrider.model.graphs import Bucket, StepRunner
from outrider.model.ranks import Ranks
from outrider.model.shard import Shard, choose_placement

PART = "ranks"
NUM_LAYERS = 5
NUM_INPUTS = 8


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields what groups of 1, 2, 4 and 8 ranks find, as far as there are GPUs."""
    num_devices = 2 if bench.is_tiny else torch.cuda.device_count()
    if num_devices == 1:
        yield Finding(part=PART, name="left out: a group needs more GPUs than", value=1, unit="")
        return
    for num_ranks in (1, 2, 4, 8):
        if num_ranks <= num_devices:
            yield from of_group(num_ranks, is_tiny=bench.is_tiny)


def of_group(num_ranks: int, *, is_tiny: bool) -> Iterator[Finding]:
    """Starts the ranks, and yields what the first finds."""
    with TemporaryDirectory() as directory:
        spawn(run_rank, (num_ranks, directory, is_tiny), num_ranks)
        for line in (Path(directory) / "found").read_text().splitlines():
            yield Finding.from_line(line)


def run_rank(rank: int, num_ranks: int, directory: str, is_tiny: bool) -> None:
    """Joins a group, measures, and writes down what the first rank finds."""
    if not is_tiny:
        torch.cuda.set_device(rank)
    bench = Bench.in_interpreter() if is_tiny else Bench.on_gpu()
    backend = "gloo" if is_tiny else "nccl"
    dist.init_process_group(backend, f"file://{directory}/store", rank=rank, world_size=num_ranks)
    found = [finding.line for finding in of_rank(bench, DistributedRanks())]
    if rank == 0:
        (Path(directory) / "found").write_text("\n".join(found))
    # A communicator waits for graphs that use it: all of them are gone by now.
    dist.destroy_process_group()


@torch.inference_mode()
def of_rank(bench: Bench, ranks: Ranks) -> Iterator[Finding]:
    """Yields what every rank of a group measures, all at the same time."""
    finding = partial(_finding, ranks.num_ranks)
    yield finding("gathered parts", num_wrong_parts(bench, ranks), "differ", limit=0)
    for num_rows in bench.sizes((1, 8, 64), (1,)):
        for what, width in (("attention's", 1), ("the experts'", bench.moe.num_experts_per_token + 1)):
            x = [bench.normal(num_rows * width, bench.model.hidden_size, seed=n) for n in range(NUM_INPUTS)]
            time = seconds([partial(ranks.all_gather, item) for item in x], bench.device)
            yield finding(f"{num_rows} rows: all-gather of {what} parts", 1e6 * time, "us")
    yield from of_steps(bench, ranks)


def num_wrong_parts(bench: Bench, ranks: Ranks) -> int:
    """Returns how many ranks' parts arrive otherwise than they were sent."""
    width = bench.model.hidden_size
    gathered = ranks.all_gather(bench.normal(3, width, seed=ranks.rank))
    return sum(
        not torch.equal(part, bench.normal(3, width, seed=sender)) for sender, part in enumerate(gathered)
    )


def of_steps(bench: Bench, ranks: Ranks) -> Iterator[Finding]:
    """Yields steps of the first layers: equal bits on all ranks and with graphs, and the time with them."""
    bench = bench.with_model(num_layers=bench.sizes((NUM_LAYERS,), (2,))[0])
    context = bench.sizes((CONTEXT,), (4,))[0]
    sizes = [StepSize(num_sequences=number, num_drafts=0) for number in bench.sizes((1, 8, 64), (2,))]
    plain, recorded = runners(bench, ranks, sizes, context)
    for size in sizes:
        name, batch = f"{size.num_rows} rows", make_batch(bench, size, context, seed=0)
        expected = plain.forward(batch).logits.clone()
        found = recorded.forward(batch).logits.clone()
        finding = partial(_finding, ranks.num_ranks)
        yield finding(f"{name}: graph or none", num_different(found, expected), "rows differ", limit=0)
        on_ranks = ranks.all_gather(found)
        worst = max(num_different(other, found) for other in on_ranks)
        yield finding(f"{name}: rank by rank", worst, "rows differ", limit=0)
        time = step_seconds(bench, recorded, size, context)
        yield finding(f"{name}: step of {bench.model.num_layers} layers", 1e6 * time, "us")


def runners(bench: Bench, ranks: Ranks, sizes: list[StepSize], context: int) -> tuple[StepRunner, StepRunner]:
    """Returns one that computes steps as they are, and one with a graph for every size, over one cache."""
    shard = Shard(ranks=ranks, placement=choose_placement(bench.model, ranks, None))
    model = random_model(bench, shard)
    num_blocks = max(size.num_sequences for size in sizes) * -(-(context + 1) // BLOCK_SIZE) + 1
    cache = model.new_kv_cache(num_blocks, BLOCK_SIZE)
    buckets = [
        Bucket(num_rows=size.num_rows, num_sequences=size.num_sequences, min_num_rows=size.num_rows)
        for size in sizes
    ]
    recorded = StepRunner(model, cache, buckets, max_model_len=context + 1)
    recorded.record(lambda done, total: None)
    return StepRunner(model, cache), recorded


def num_different(found: Tensor, expected: Tensor) -> int:
    """Returns how many rows have other bits."""
    return int((found != expected).any(1).sum())


def _finding(num_ranks: int, name: str, value: float, unit: str, limit: float | None = None) -> Finding:
    name = f"{num_ranks} ranks: {name}"
    if limit is not None:
        return Finding.at_most(PART, name, value, unit, limit)
    return Finding(part=PART, name=name, value=value, unit=unit)
