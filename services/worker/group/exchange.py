"""The parts of layers, as a rank exchanges them with the others."""

from dataclasses import replace

import torch.distributed as dist
from torch import Tensor

from outrider.model.distributed_ranks import DistributedRanks, Traffic
from services.worker.group.channel import losing_the_group


class Exchange:
    """The ranks as the model sees them; only for the thread that steps it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._ranks = DistributedRanks(group)
        self._taken = Traffic()
        self.rank = self._ranks.rank
        self.num_ranks = self._ranks.num_ranks

    def all_gather(self, x: Tensor) -> Tensor:
        """[*shape] -> [R, *shape]. Raises GroupLost."""
        with losing_the_group():
            return self._ranks.all_gather(x)

    def take(self) -> Traffic:
        """Returns what was exchanged since this was asked before."""
        traffic, taken = replace(self._ranks.traffic), self._taken
        self._taken = traffic
        return Traffic(
            num_calls=traffic.num_calls - taken.num_calls,
            num_bytes=traffic.num_bytes - taken.num_bytes,
            seconds=traffic.seconds - taken.seconds,
        )
