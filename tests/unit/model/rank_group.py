"""Runs a function in the processes of a group, over Gloo, and hands back what it returns on each rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from outrider.model.distributed_ranks import DistributedRanks

Check = Callable[[DistributedRanks, Path], Any]


def run_ranks(num_ranks: int, check: Check, directory: Path) -> list[Any]:
    """What `check(ranks, directory)` returns on each rank; raises what it raises on any."""
    spawn(_run_rank, (num_ranks, check, directory), nprocs=num_ranks)
    return [torch.load(_result(directory, num_ranks, rank)) for rank in range(num_ranks)]


def _run_rank(rank: int, num_ranks: int, check: Check, directory: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{directory / f'store-{num_ranks}'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    torch.save(check(DistributedRanks(), directory), _result(directory, num_ranks, rank))
    dist.destroy_process_group()


def _result(directory: Path, num_ranks: int, rank: int) -> Path:
    return directory / f"result-{num_ranks}-{rank}.pt"
