"""The parts of layers, as a rank exchanges them with the others."""

import torch.distributed as dist
from torch import Tensor

from outrider.model.distributed_ranks import DistributedRanks
from services.worker.group.channel import losing_the_group


class Exchange:
    """The ranks as the model sees them; only for the thread that steps it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        ranks = DistributedRanks(group)
        self.rank = ranks.rank
        self.num_ranks = ranks.num_ranks
        self.take_traffic = ranks.take_traffic
        self._all_gather = ranks.all_gather

    def all_gather(self, x: Tensor) -> Tensor:
        """[*shape] -> [R, *shape]. Raises GroupLost."""
        with losing_the_group():
            return self._all_gather(x)
