"""What kernels that sample have in common: how rows are cut, what is known of them, the order of scores."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles, padded_size

LARGEST_TILE = 4096
# Enough to fill a GPU twice; rows are cut further only to get there.
NUM_PROGRAMS = 2048

INFINITY = tl.constexpr(float("inf"))
NO_WINNER = tl.constexpr(-1)

# Columns of SamplingRows.parameters.
NUM_PARAMETERS = tl.constexpr(8)
TEMPERATURE = tl.constexpr(0)
TOP_K = tl.constexpr(1)
TOP_P = tl.constexpr(2)
LOG_MIN_P = tl.constexpr(3)
SEED_LOW = tl.constexpr(4)
SEED_HIGH = tl.constexpr(5)
CHOICE = tl.constexpr(6)
POSITION = tl.constexpr(7)

# Columns of Rows.searches: the last rank kept; of a search for it the leading bits and the missing weight.
NUM_SEARCHES = tl.constexpr(3)
LIMIT = tl.constexpr(0)
PREFIX = tl.constexpr(1)
MISSING = tl.constexpr(2)
LOWEST_RANK = tl.constexpr(0xFF800000)  # of minus infinity


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Scores cut into tiles, and what the kernels tell each other about them."""

    scores: Tensor  # [R, V] fp32
    parameters: Tensor  # [R, 8] fp64
    maxima: Tensor  # [R, tiles] fp32: the highest score of each, infinity where a logit is not finite
    searches: Tensor  # [R, 3] int64
    winners: Tensor  # [R] int64: the best sum of score and noise, and its token, as one number; or NO_WINNER
    tile: int
    tiles_per_program: int

    @property
    def grid(self) -> tuple[int, int]:
        """A program for some tiles of each row."""
        return len(self.scores), num_tiles(self.maxima.shape[1], self.tiles_per_program)

    @property
    def arguments(self) -> dict[str, Tensor | int]:
        """What a kernel that looks at all scores is told."""
        return {
            "scores_ptr": self.scores,
            "parameters_ptr": self.parameters,
            "maxima_ptr": self.maxima,
            "searches_ptr": self.searches,
            "V": self.scores.shape[1],
            "num_tiles": self.maxima.shape[1],
            "tiles_per_program": self.tiles_per_program,
        }

    @property
    def blocks(self) -> dict[str, int]:
        """The sizes that a kernel is compiled for."""
        return {"TILE": self.tile, "BLOCK_T": padded_size(self.maxima.shape[1])}


def empty_rows(scores: Tensor, parameters: Tensor) -> Rows:
    """Room for what the kernels tell each other; a row is cut the same however many there are."""
    R, V = scores.shape
    tile = min(LARGEST_TILE, max(128, padded_size(V)))
    T = num_tiles(V, tile)
    return Rows(
        scores=scores,
        parameters=parameters,
        maxima=torch.empty(R, T, dtype=torch.float32, device=scores.device),
        searches=torch.empty(R, 3, dtype=torch.int64, device=scores.device),
        winners=torch.empty(R, dtype=torch.int64, device=scores.device),
        tile=tile,
        tiles_per_program=max(1, min(T, R * T // NUM_PROGRAMS)),
    )


def maxima_launch(logits: Tensor, rows: Rows) -> Launch:
    """The first look at every row: its maxima, and nothing won or left out yet."""
    return Launch(
        kernel=maxima_kernel,
        grid=(len(rows.scores), rows.maxima.shape[1]),
        arguments={
            "logits_ptr": logits,
            "scores_ptr": rows.scores,
            "maxima_ptr": rows.maxima,
            "searches_ptr": rows.searches,
            "winners_ptr": rows.winners,
            "V": rows.scores.shape[1],
            "num_tiles": rows.maxima.shape[1],
        },
        constants={"EDITED": logits is not rows.scores, "TILE": rows.tile},
    )


@triton.jit
def maxima_kernel(
    logits_ptr: tl.tensor,
    scores_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    searches_ptr: tl.tensor,
    winners_ptr: tl.tensor,
    V: int,
    num_tiles: int,
    EDITED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Maxima of tiles: scores [R, V] -> [R, tiles], infinity if any of the logits [R, V] is not finite.

    EDITED: the scores are no longer the logits. Dense rows.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    offs = tile * TILE + tl.arange(0, TILE)
    scores = tl.load(scores_ptr + row * V + offs, mask=offs < V, other=-INFINITY)
    logits = tl.load(logits_ptr + row * V + offs, mask=offs < V, other=0.0) if EDITED else scores
    is_wrong = (offs < V) & ~(tl.abs(logits) < INFINITY)
    best = tl.max(tl.where(is_wrong, INFINITY, scores))
    tl.store(maxima_ptr + row * num_tiles + tile, best)
    if tile == 0:
        tl.store(winners_ptr + row, NO_WINNER)
        tl.store(searches_ptr + row * NUM_SEARCHES + LIMIT, LOWEST_RANK)


@triton.jit
def row_maximum(maxima_ptr: tl.tensor, row: tl.tensor, num_tiles: int, BLOCK_T: tl.constexpr) -> tl.tensor:
    """The highest score of a row, infinity if it is not finite."""
    offs = tl.arange(0, BLOCK_T)
    return tl.max(tl.load(maxima_ptr + row * num_tiles + offs, mask=offs < num_tiles, other=-INFINITY))


@triton.jit
def rank_of(scores: tl.tensor) -> tl.tensor:
    """Orders fp32 by uint32: the higher a score, the lower its rank. Zeros tie, whatever their sign."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits, 0x7FFFFFFF - bits)


@triton.jit
def score_of(rank: tl.tensor) -> tl.tensor:
    """The score of a rank."""
    return tl.where(rank >= 0x80000000, rank, 0x7FFFFFFF - rank).to(tl.float32, bitcast=True)
