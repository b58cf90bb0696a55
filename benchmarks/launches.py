"""What one step launches, counted by running the network's own code on tensors without memory.

python -m benchmarks.launches [--model kimi-k2.5] [--rows 8] [--ranks 8]
"""

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import published
from benchmarks.aot.recording import recorded
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.model_slice import BLOCK_SIZE, StepSize, make_batch
from benchmarks.gpu.random_checkpoint import random_model
from benchmarks.gpu.sampling import sampling_rows
from outrider.kernels import load_kernels
from outrider.model.config import ModelConfig
from outrider.model.shard import Shard, choose_placement
from outrider.model.transfer import tensors_of, with_tensors

META = torch.device("meta")
CONTEXT = 4096
TORCH, EXCHANGE = "torch", "all_gather"
"""What torch's own operations are counted as, and those between ranks."""


@dataclass(slots=True)
class CountedRanks:
    """The first of some ranks, which has nobody to talk to: it counts what it would send."""

    num_ranks: int
    rank: int = 0
    num_calls: int = 0
    num_bytes: int = 0

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[*shape] -> [R, *shape], of which nothing is filled in."""
        self.num_calls += 1
        self.num_bytes += x.nbytes
        return x.new_empty(self.num_ranks, *x.shape)


class CountedOperations(TorchDispatchMode):
    """Counts operations of torch that compute something: not views of tensors, nor room for new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        outputs = _storages(found)
        is_view = not func._schema.is_mutable and bool(outputs & _storages((args, kwargs)))
        if outputs and not is_view and "empty" not in func._schema.name:
            self.num_operations += 1
        return found


def _storages(values: Any) -> set[int]:
    """Where the tensors among some values lie."""
    return {leaf.untyped_storage()._cdata for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


def count(model: str, num_rows: int, num_ranks: int = 1) -> Mapping[str, int]:
    """Returns how many launches of each kernel a step of so many rows, each of its own sequence, makes.

    They are those of one of `num_ranks` ranks, and a collective is one.
    """
    config = published.read_config(model)
    first, second = (
        count_layers(config, num_rows, config.num_dense_layers + extra, num_ranks) for extra in (1, 2)
    )
    num_more = config.num_layers - config.num_dense_layers - 1
    return {kernel: first[kernel] + num_more * (second[kernel] - first[kernel]) for kernel in second}


def count_layers(config: ModelConfig, num_rows: int, num_layers: int, num_ranks: int = 1) -> Counter[str]:
    """Counts the launches of the first layers with embedding, head and sampling, in falling order."""
    bench = Bench(
        device=META,
        dtype=torch.bfloat16,
        precision=torch.bfloat16,
        kernels=load_kernels("triton"),
        model=replace(config, num_layers=num_layers),
        is_tiny=False,
    )
    ranks = CountedRanks(num_ranks)
    placement = choose_placement(bench.model, ranks, None)
    network = random_model(bench, Shard(ranks=ranks, placement=placement))
    size = StepSize(num_sequences=num_rows, num_drafts=0)
    cache = network.new_kv_cache(num_rows * (CONTEXT // BLOCK_SIZE + 1), BLOCK_SIZE)
    inputs = network.lay_out(make_batch(bench, size, CONTEXT, seed=0), BLOCK_SIZE)
    inputs = with_tensors(inputs, [tensor.to(META) for tensor in tensors_of(inputs)])
    rows = sampling_rows(bench, num_rows, top_p=1.0, num_rows_per_sequence=1)
    with torch.inference_mode(), recorded() as launches, CountedOperations() as others:
        logits = network.compute(inputs, cache).logits
        bench.kernels.sample_and_verify(logits, logits, rows)
    counts = Counter(launch.kernel.__name__.removesuffix("_kernel") for launch in launches)
    exchanges = {EXCHANGE: ranks.num_calls} if ranks.num_calls else {}
    return Counter({**dict(counts.most_common()), **exchanges, TORCH: others.num_operations})


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=published.MODELS, default="kimi-k2.5")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    counts = count(arguments.model, arguments.rows, arguments.ranks)
    for kernel, number in counts.items():
        print(f"{kernel:<24}{number:>6}")
    print(f"{'together':<24}{sum(counts.values()):>6}")


if __name__ == "__main__":
    main()
