"""The map logical expert -> physical experts -> ranks, one for all MoE layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.model.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Move:
    """A slot that is to hold a copy of another logical expert."""

    layer: int  # among the layers with routed experts
    slot: int
    expert: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Every layer has P slots for physical experts, of which rank r holds P / R neighbours from r * P / R on.

    Each logical expert is in one slot at least.
    """

    version: int  # grows with each change; 0 is what a group begins with
    experts: NDArray[np.int64]  # [L, P] the logical expert in each slot
    num_experts: int
    num_ranks: int

    @classmethod
    def balanced(
        cls, *, num_layers: int, num_experts: int, num_redundant: int = 0, num_ranks: int = 1
    ) -> "Placement":
        """The first placement: experts in order, the first ones again in what slots are left.

        Raises ModelError if the slots cannot be dealt out to the ranks in equal parts.
        """
        num_slots = num_experts + num_redundant
        if num_slots % num_ranks or num_redundant > num_experts:
            raise ModelError(
                f"{num_experts} experts and {num_redundant} redundant ones cannot be dealt out in equal parts"
                f" to {num_ranks} ranks"
            )
        row = np.arange(num_slots, dtype=np.int64) % num_experts
        experts = np.broadcast_to(row, (num_layers, num_slots)).copy()
        return cls(version=0, experts=experts, num_experts=num_experts, num_ranks=num_ranks)

    @property
    def num_slots(self) -> int:
        """Slots of a layer over all ranks."""
        return self.experts.shape[1]

    @property
    def num_slots_per_rank(self) -> int:
        """Slots of a layer on one rank."""
        return self.num_slots // self.num_ranks

    def on_rank(self, rank: int) -> NDArray[np.int64]:
        """The logical experts in the slots of a rank: [L, P / R]."""
        first = rank * self.num_slots_per_rank
        return self.experts[:, first : first + self.num_slots_per_rank]

    def filled(self, experts: NDArray[np.integer]) -> "Placement":
        """The same slots with other experts [L, P]; raises ValueError if an expert is nowhere."""
        if any(len(np.unique(row)) != self.num_experts for row in experts):
            raise ValueError("a layer would lack an expert")
        return replace(self, experts=experts.astype(np.int64))

    def after(self, moves: Sequence[Move]) -> "Placement":
        """The next version, with these slots filled anew; raises ValueError if an expert is nowhere then."""
        experts = self.experts.copy()
        for move in moves:
            experts[move.layer, move.slot] = move.expert
        for layer in {move.layer for move in moves}:
            if len(np.unique(experts[layer])) != self.num_experts:
                raise ValueError(f"layer {layer} would lack an expert")
        return replace(self, version=self.version + 1, experts=experts)
