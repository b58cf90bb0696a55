"""The EPLB method: a whole placement made of loads, by copies of busy experts and greedy packing.

The method is DeepSeek's (github.com/deepseek-ai/EPLB). With experts in groups, of which a token chooses few,
the groups are first dealt to the nodes, so that a token's experts are on few nodes; then each node deals out
its own experts. Groups that cannot be dealt out equally do not count: then all ranks are one node.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outrider.model.placement.balance import Loads, rank_loads
from outrider.model.placement.placement import Placement


def place(
    loads: Loads, *, num_slots: int, num_ranks: int, num_groups: int = 1, num_nodes: int = 1
) -> NDArray[np.int64]:
    """Fills the slots of every layer, each rank's being neighbours: loads [L, E] -> experts [L, P]."""
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    groups = np.arange(loads.shape[1]).reshape(num_groups, -1)
    return np.stack(
        [_place_layer(row, groups, num_slots, num_ranks, num_nodes) for row in loads.astype(np.float64)]
    )


def begin_with(start: Placement, loads: Loads, *, num_groups: int = 1, num_nodes: int = 1) -> Placement:
    """The placement that a group begins with where loads are known.

    Greedy packing may miss an even placement: a layer that `start` serves as well stays as it is there.
    """
    experts = place(
        loads,
        num_slots=start.num_slots,
        num_ranks=start.num_ranks,
        num_groups=num_groups,
        num_nodes=num_nodes,
    )
    waits_at_start = rank_loads(start, loads).max(1)
    waits = rank_loads(replace(start, experts=experts), loads).max(1)
    return replace(start, experts=np.where((waits < waits_at_start)[:, None], experts, start.experts))


def pack(loads: Sequence[float] | NDArray[np.float64], num_bins: int) -> list[list[int]]:
    """Deals out things in equal numbers: the heaviest first, to the lightest bin with room."""
    loads = np.asarray(loads)
    room = len(loads) // num_bins
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    weights = np.zeros(num_bins)
    for item in np.argsort(-loads, kind="stable").tolist():
        lightest = int(np.argmin(weights))
        bins[lightest].append(item)
        weights[lightest] += loads[item]
        if len(bins[lightest]) == room:
            weights[lightest] = np.inf
    return bins


def replicate(loads: NDArray[np.float64], num_slots: int) -> NDArray[np.int64]:
    """One slot for each expert, and one more at a time for that with most load a copy: [E] -> [P]."""
    copies = np.ones(len(loads), dtype=np.int64)
    slots = list(range(len(loads)))
    while len(slots) < num_slots:
        busiest = int(np.argmax(loads / copies))
        copies[busiest] += 1
        slots.append(busiest)
    return np.array(slots)


def _place_layer(
    loads: NDArray[np.float64], groups: NDArray[np.int64], num_slots: int, num_ranks: int, num_nodes: int
) -> NDArray[np.int64]:
    nodes = [groups[held].ravel() for held in pack(loads[groups].sum(1), num_nodes)]
    placed = [
        experts[_place_node(loads[experts], num_slots // num_nodes, num_ranks // num_nodes)]
        for experts in nodes
    ]
    return np.concatenate(placed)


def _place_node(loads: NDArray[np.float64], num_slots: int, num_ranks: int) -> NDArray[np.int64]:
    slots = replicate(loads, num_slots)
    shares = (loads / np.bincount(slots))[slots]
    return slots[np.concatenate(pack(shares, num_ranks))]
