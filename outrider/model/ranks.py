"""The ranks of a group as the network sees them: which part of each layer is whose, and how parts meet."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.kernels.interface import Kernels
from outrider.model.errors import ModelError


class Ranks(Protocol):
    """The processes that hold one copy of the model together; each computes the same steps in lockstep."""

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    def all_gather(self, x: Tensor) -> Tensor:
        """The x of every rank, in rank order: [*shape] -> [R, *shape]. All ranks give the same shape."""
        ...


@dataclass(frozen=True)
class Alone:
    """A group of one: every part is the whole."""

    rank: int = 0
    num_ranks: int = 1

    def all_gather(self, x: Tensor) -> Tensor:
        """[*shape] -> [1, *shape]."""
        return x[None]


ALONE = Alone()


def whole_of(part: Tensor, kernels: Kernels, ranks: Ranks) -> Tensor:
    """The sum of what all ranks computed of a layer [T, D], added in rank order: the same bits on each."""
    return part if ranks.num_ranks == 1 else kernels.add_parts(ranks.all_gather(part))


def own_part(size: int, ranks: Ranks, what: str, multiple: int = 1) -> slice:
    """The rank's equal share of `size` neighbours; raises ModelError, naming `what`, if there is none.

    Each share is a multiple of `multiple`, which quantized weights ask for.
    """
    if size % (ranks.num_ranks * multiple):
        wholes = f" in multiples of {multiple}" if multiple > 1 else ""
        raise ModelError(f"{size} {what} cannot be split{wholes} over {ranks.num_ranks} ranks")
    share = size // ranks.num_ranks
    return slice(ranks.rank * share, (ranks.rank + 1) * share)
