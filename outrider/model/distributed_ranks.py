"""The ranks of a torch.distributed process group: Gloo between CPUs, NCCL between GPUs."""

from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

# What torch 2.13 calls otherwise.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(slots=True)
class Traffic:
    """What was exchanged since it was last taken."""

    num_calls: int = 0
    num_bytes: int = 0  # that this rank sent to each of the others
    # Of waiting for the others and moving bytes; on a GPU, whose host does not wait, of launching.
    seconds: float = 0.0


class DistributedRanks:
    """A process group as the network sees it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """None: the default group."""
        self.rank = dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)
        self.traffic = Traffic()
        self._group = group

    def take_traffic(self) -> Traffic:
        """What was exchanged since this was last asked for: a step's, if it is asked after each."""
        traffic, self.traffic = self.traffic, Traffic()
        return traffic

    def all_gather(self, x: Tensor) -> Tensor:
        """The x of every rank, in rank order: [*shape] -> [R, *shape]; raises RuntimeError if one is gone."""
        began = perf_counter()
        x = x.contiguous()
        gathered = x.new_empty(self.num_ranks, *x.shape)
        # As bytes: a backend need not know the type.
        sent, received = x.view(-1).view(torch.uint8), gathered.view(-1).view(torch.uint8)
        all_gather_single(received, sent, group=self._group)
        self.traffic.num_calls += 1
        self.traffic.num_bytes += x.nbytes
        self.traffic.seconds += perf_counter() - began
        return gathered
