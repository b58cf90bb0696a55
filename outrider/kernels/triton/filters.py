"""Top-k and top-p: the last score kept, found by its bits, a few at a time, without sorting.

A search goes down the ranks of scores: a histogram of the leading bits tells in which bin the wanted weight
is reached, then the next bits of that bin's scores are looked at, until all 32 are known. Weights are counts
for top-k and probabilities in fixed point for top-p: integers, whose sums do not depend on their order.

The probability of a score relative to the best's is exp(score - best) in fp32, cut off at 2^-44. A term
is off by at most 2^-18 of itself, those of likely tokens by far less, and all that is cut off is below 2^-26
of the best's: where no cumulated probability lies within 2^-18 of top-p, the scores kept are those kept by
exact sums.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.sample_rows import (
    INFINITY,
    LIMIT,
    MISSING,
    NUM_PARAMETERS,
    NUM_SEARCHES,
    PREFIX,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Rows,
    rank_of,
    row_maximum,
)

# The bits of a rank that each level of a search looks at, and those behind them.
LEVELS = ((12, 20), (10, 10), (10, 0))
NUM_BINS = 1 << 12
# A sum over 2^18 tokens stays below 2^63.
MASS_UNIT = tl.constexpr(2.0**44)


def filter_launches(rows: Rows, *, top_k: bool, top_p: bool) -> Iterator[Launch]:
    """Finds the last rank that top-k keeps, then the last that top-p keeps of those."""
    if rows.scores.shape[1] > 1 << 18:
        raise ValueError(f"a vocabulary of {rows.scores.shape[1]} tokens is larger than {1 << 18}")
    # Emptied by what reads them.
    histograms = torch.zeros(len(rows.scores), NUM_BINS, dtype=torch.int64, device=rows.scores.device)
    for by_mass in [False] * top_k + [True] * top_p:
        for level in range(len(LEVELS)):
            yield histogram_launch(rows, histograms, level, by_mass=by_mass)
            yield pick_launch(rows, histograms, level, by_mass=by_mass)


def histogram_launch(rows: Rows, histograms: Tensor, level: int, *, by_mass: bool) -> Launch:
    """One level's weights by bin: [R, NUM_BINS] int64."""
    bits, shift = LEVELS[level]
    return Launch(
        kernel=histogram_kernel,
        grid=rows.grid,
        arguments={**rows.arguments, "histograms_ptr": histograms},
        constants={"BY_MASS": by_mass, "BITS": bits, "SHIFT": shift, "BINS": NUM_BINS, **rows.blocks},
        num_warps=8,
    )


def pick_launch(rows: Rows, histograms: Tensor, level: int, *, by_mass: bool) -> Launch:
    """One level's choice of a bin."""
    bits, shift = LEVELS[level]
    return Launch(
        kernel=pick_kernel,
        grid=(len(rows.scores),),
        arguments={
            "parameters_ptr": rows.parameters,
            "searches_ptr": rows.searches,
            "histograms_ptr": histograms,
            "V": rows.scores.shape[1],
        },
        constants={"BY_MASS": by_mass, "BITS": bits, "SHIFT": shift, "BINS": NUM_BINS},
        num_warps=8,
    )


@triton.jit
def histogram_kernel(
    scores_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    searches_ptr: tl.tensor,
    histograms_ptr: tl.tensor,
    V: int,
    num_tiles: int,
    tiles_per_program: int,
    BY_MASS: tl.constexpr,
    BITS: tl.constexpr,
    SHIFT: tl.constexpr,
    BINS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_T: tl.constexpr,
) -> None:
    """Adds weights to the bins of ranks that begin with the search's bits: scores [R, V] -> [R, BINS].

    bin = bits SHIFT to SHIFT + BITS of the rank. Rows that are not searched are left alone.
    """
    row = tl.program_id(0).to(tl.int64)
    parameters = parameters_ptr + row * NUM_PARAMETERS
    best = row_maximum(maxima_ptr, row, num_tiles, BLOCK_T)
    if is_searched(parameters, V, BY_MASS) & (tl.abs(best) < INFINITY):
        temperature = tl.load(parameters + TEMPERATURE).to(tl.float32)
        top = tl.div_rn(best, temperature)
        search = searches_ptr + row * NUM_SEARCHES
        limit = tl.load(search + LIMIT).to(tl.uint32)
        last = limit
        if SHIFT + BITS < 32:
            prefix = tl.load(search + PREFIX).to(tl.uint32)
            last = tl.minimum(limit, (prefix << (SHIFT + BITS)) | ((1 << (SHIFT + BITS)) - 1))
        reach = nearest_of_no_matter(tl.load(parameters + TOP_P), V) if BY_MASS else INFINITY
        first = tl.program_id(1) * tiles_per_program
        for tile in range(first, tl.minimum(first + tiles_per_program, num_tiles)):
            highest = tl.load(maxima_ptr + row * num_tiles + tile)
            if rank_of(tl.div_rn(highest, temperature)) <= last:
                offs = tile * TILE + tl.arange(0, TILE)
                scores = tl.load(scores_ptr + row * V + offs, mask=offs < V, other=-INFINITY)
                scores = tl.div_rn(scores, temperature)
                rank = rank_of(scores)
                kept = (offs < V) & (rank <= limit)
                counted = kept
                weights = tl.full((TILE,), 1, tl.int64)
                if BY_MASS:
                    weights = (tl.exp(scores - top) * MASS_UNIT).to(tl.int64)
                    counted = kept & (top - scores < reach) & (weights > 0)
                bins = histograms_ptr + row * BINS
                if SHIFT + BITS < 32:
                    counted = counted & ((rank >> (SHIFT + BITS)) == prefix)
                elif BY_MASS:
                    rest = tl.sum(tl.where(kept & ~counted, weights, 0))
                    tl.atomic_add(bins + BINS - 1, rest, sem="relaxed")
                places = ((rank >> SHIFT) & ((1 << BITS) - 1)).to(tl.int32)
                tl.atomic_add(bins + places, weights, mask=counted, sem="relaxed")


@triton.jit
def pick_kernel(
    parameters_ptr: tl.tensor,
    searches_ptr: tl.tensor,
    histograms_ptr: tl.tensor,
    V: int,
    BY_MASS: tl.constexpr,
    BITS: tl.constexpr,
    SHIFT: tl.constexpr,
    BINS: tl.constexpr,
) -> None:
    """Goes into the bin in which the weight is reached: searches [R, 3]; empties the histogram [R, BINS].

    Behind the last level the search has found its limit.
    """
    row = tl.program_id(0).to(tl.int64)
    parameters = parameters_ptr + row * NUM_PARAMETERS
    if is_searched(parameters, V, BY_MASS):
        search = searches_ptr + row * NUM_SEARCHES
        bins = histograms_ptr + row * BINS + tl.arange(0, 1 << BITS)
        weights = tl.load(bins)
        tl.store(bins, tl.zeros_like(weights))
        prefix = tl.full((), 0, tl.int64)
        if SHIFT + BITS < 32:
            prefix = tl.load(search + PREFIX)
            missing = tl.load(search + MISSING)
        elif BY_MASS:
            # The best score is kept whatever top-p is.
            mass = tl.sum(weights).to(tl.float64)
            missing = tl.maximum(tl.ceil(tl.load(parameters + TOP_P) * mass).to(tl.int64), 1)
        else:
            missing = tl.load(parameters + TOP_K).to(tl.int64)
        is_before = tl.cumsum(weights, 0) < missing
        prefix = (prefix << BITS) | tl.sum(is_before.to(tl.int32)).to(tl.int64)
        if SHIFT == 0:
            tl.store(search + LIMIT, prefix)
        else:
            tl.store(search + PREFIX, prefix)
            tl.store(search + MISSING, missing - tl.sum(tl.where(is_before, weights, 0)))


@triton.jit
def is_searched(parameters: tl.tensor, V: int, BY_MASS: tl.constexpr) -> tl.tensor:
    """Whether the row is sampled with such a filter."""
    if BY_MASS:
        wanted = tl.load(parameters + TOP_P) < 1.0
    else:
        top_k = tl.load(parameters + TOP_K)
        wanted = (top_k > 0.0) & (top_k < V)
    return wanted & (tl.load(parameters + TEMPERATURE) > 0.0)


@triton.jit
def nearest_of_no_matter(top_p: tl.tensor, V: int) -> tl.tensor:
    """How far below the best no score is the last kept: V such tokens weigh less than (1 - top_p) / e."""
    return (1.0 + tl.log(V / (1.0 - top_p))).to(tl.float32)
