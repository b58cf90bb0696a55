"""Simulates the placement of Kimi K2.5's experts under loads that drift: what moving them gains and takes.

The loads of a layer are Zipf's: the expert of rank k is chosen in proportion to k ** -EXPONENT. Which expert
has which rank drifts, in each layer by itself: the ranks are those of numbers that forget a hundredth of
themselves a minute. The exponent and the drift are assumptions, not measured on the model.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model.placement import Loads, Placement, imbalance
from outrider.model.placement.eplb import begin_with
from outrider.model.placement.rebalance import Limits, plan_moves
from services.worker.config import GroupConfig
from services.worker.loads import LoadWindow

NUM_LAYERS, NUM_EXPERTS, NUM_EXPERTS_PER_TOKEN = 60, 384, 8
# int4 with a scale of two bytes for 32: three products of 7168 x 2048.
NUM_EXPERT_BYTES = 3 * 7168 * 2048 * 9 // 16
BUDGET = GroupConfig().rebalance_bytes
EXPONENT = 0.6
MEMORY = 0.99
TOKENS_PER_MINUTE = 60_000
NUM_MINUTES = 30
NUM_RANKS = (8, 32)
NUM_REDUNDANT = (0, 8, 32)


def loads_by_minute(rng: np.random.Generator) -> Iterator[Loads]:
    """Yields how often each expert is chosen for one token in each layer: [L, E]."""
    state = rng.normal(size=(NUM_LAYERS, NUM_EXPERTS))
    shares = np.arange(1, NUM_EXPERTS + 1) ** -EXPONENT
    shares *= NUM_EXPERTS_PER_TOKEN / shares.sum()
    while True:
        yield shares[(-state).argsort(1).argsort(1)]
        state = MEMORY * state + np.sqrt(1 - MEMORY**2) * rng.normal(size=state.shape)


def simulate(num_ranks: int, num_redundant: int, num_minutes: int) -> Mapping[str, Any]:
    """Returns the balance in the second half of the time, and what was read for it in all of it."""
    rng = np.random.default_rng(1)
    start = Placement.balanced(
        num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, num_redundant=num_redundant, num_ranks=num_ranks
    )
    limits = Limits(max_num_moves_per_rank=BUDGET // NUM_EXPERT_BYTES)
    window = LoadWindow(NUM_LAYERS, NUM_EXPERTS)
    once = anew = moved = start
    num_read, num_moves, num_rounds = 0, 0, 0
    found: list[list[float]] = []
    for minute, loads in zip(range(num_minutes), loads_by_minute(rng), strict=False):
        window.count(rng.poisson(loads * TOKENS_PER_MINUTE), TOKENS_PER_MINUTE)
        before, anew = anew, begin_with(start, window.loads)
        num_read += num_new_copies(before, anew)
        once = once if minute else anew
        while moves := plan_moves(moved, window.loads, limits):
            moved = moved.after(moves)
            num_moves, num_rounds = num_moves + len(moves), num_rounds + 1
        found.append([imbalance(placement, loads) for placement in (start, once, anew, moved)])
    balanced, placed_once, placed_anew, by_moves = np.mean(found[num_minutes // 2 :], axis=0).tolist()
    return {
        "num_ranks": num_ranks,
        "num_redundant": num_redundant,
        "balanced": balanced,
        "eplb_once": placed_once,
        "eplb_every_minute": placed_anew,
        "moves": by_moves,
        "num_moves": num_moves,
        "num_rounds": num_rounds,
        "moved_gigabytes": num_moves * NUM_EXPERT_BYTES / 1e9,
        "eplb_gigabytes": num_read * NUM_EXPERT_BYTES / 1e9,
    }


def num_new_copies(before: Placement, after: Placement) -> int:
    """Counts the experts that ranks hold and did not hold before."""
    return int((_held(after) & ~_held(before)).sum())


def _held(placement: Placement) -> NDArray[np.bool_]:
    """Which rank holds which expert: [L, R, E]."""
    held = np.zeros((len(placement.experts), placement.num_ranks, placement.num_experts), dtype=bool)
    for rank in range(placement.num_ranks):
        np.put_along_axis(held[:, rank], placement.on_rank(rank), True, axis=1)
    return held


def rows(num_minutes: int = NUM_MINUTES) -> Iterator[Mapping[str, Any]]:
    """Yields a row for each number of ranks and of redundant experts that can be dealt out equally."""
    for num_ranks in NUM_RANKS:
        for num_redundant in NUM_REDUNDANT:
            if (NUM_EXPERTS + num_redundant) % num_ranks == 0:
                yield {"part": "simulated", **simulate(num_ranks, num_redundant, num_minutes)}
