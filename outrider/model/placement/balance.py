"""What a placement makes of loads: how much of each layer's work every rank has."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from outrider.model.placement.placement import Placement

Loads: TypeAlias = NDArray[np.float64]
"""How many tokens chose each logical expert of each layer with routed experts: [L, E]."""


def num_copies(row: NDArray[np.int64], num_experts: int) -> NDArray[np.int64]:
    """How many slots of a layer hold each expert: [P] -> [E]."""
    return np.bincount(row, minlength=num_experts)


def slot_loads(row: NDArray[np.int64], loads: Loads) -> Loads:
    """The load of each slot of a layer, as copies of an expert share its tokens equally: [P]."""
    return (loads / np.maximum(num_copies(row, len(loads)), 1))[row]


def rank_loads(placement: Placement, loads: Loads) -> Loads:
    """The load of each rank in each layer: [L, R]."""
    by_slot = [slot_loads(row, of_layer) for row, of_layer in zip(placement.experts, loads, strict=True)]
    return np.array(by_slot).reshape(len(loads), placement.num_ranks, -1).sum(2)


def imbalance(placement: Placement, loads: Loads) -> float:
    """The load that layers wait for by the load they would wait for if it were even: 1 is best.

    A layer is done when its busiest rank is, and layers come one after another. Without loads it is 1.
    """
    on_ranks = rank_loads(placement, loads)
    total = on_ranks.sum()
    return float(on_ranks.max(1).sum() * placement.num_ranks / total) if total else 1.0
