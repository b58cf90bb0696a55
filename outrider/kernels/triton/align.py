"""The (token, choice) pairs of a step sorted by expert, and cut into tiles of one expert each."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import padded_size

LARGEST_CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Which pairs make which tile; a pair's number is t * A + a."""

    pairs: Tensor  # [T * A] int32, sorted by expert and then by number; behind those in tiles anything
    tiles: Tensor  # [tiles, 3] int32: expert, first place, number of pairs; 0 in the last
    width: int  # pairs of a full tile


def align(experts: Tensor, num_experts: int, width: int) -> Alignment:
    """Sorts the choices [T, A] of experts below num_experts; pairs that choose another are in no tile."""
    alignment = empty_alignment(experts, num_experts, width)
    align_launch(experts, num_experts, alignment).run()
    return alignment


def empty_alignment(experts: Tensor, num_experts: int, width: int) -> Alignment:
    """Room for the most tiles that choices of this shape can make: each expert's last one may be short."""
    P = experts.numel()
    occupied = min(P, num_experts)
    most = occupied + (P - occupied) // width
    return Alignment(
        pairs=torch.empty(P, dtype=torch.int32, device=experts.device),
        tiles=torch.empty(most, 3, dtype=torch.int32, device=experts.device),
        width=width,
    )


def align_launch(experts: Tensor, num_experts: int, alignment: Alignment) -> Launch:
    """Choices [T, A], dense, into an alignment; a program for each expert."""
    P = experts.numel()
    return Launch(
        kernel=align_kernel,
        grid=(num_experts if P else 0,),
        arguments={
            "experts_ptr": experts,
            "pairs_ptr": alignment.pairs,
            "tiles_ptr": alignment.tiles,
            "P": P,
            "num_tiles": len(alignment.tiles),
        },
        constants={
            "E": num_experts,
            "BINS": padded_size(num_experts),
            "WIDTH": alignment.width,
            "CHUNK": min(LARGEST_CHUNK, max(32, padded_size(P))),
        },
        num_warps=4,
    )


@triton.jit
def align_kernel(
    experts_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    P: int,
    num_tiles: int,
    E: tl.constexpr,
    BINS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """A counting sort: place = pairs of lower experts + pairs of this expert before this one.

    experts [P] -> pairs [P], tiles [num_tiles, 3]. Every program counts all choices, so that none waits for
    another; it then lists the pairs and the tiles of its own expert. The last expert's ends the table.
    """
    expert = tl.program_id(0)
    offs = tl.arange(0, CHUNK)
    counts = tl.zeros((BINS,), tl.int32)
    for first in range(0, P, CHUNK):
        chosen = tl.load(experts_ptr + first + offs, mask=first + offs < P, other=E).to(tl.int32)
        counts += tl.histogram(chosen, BINS, mask=chosen < E)
    bins = tl.arange(0, BINS)
    place = tl.sum(tl.where(bins < expert, counts, 0))
    count = tl.sum(tl.where(bins == expert, counts, 0))
    tile = tl.sum(tl.where(bins < expert, tl.cdiv(counts, WIDTH), 0))
    for first in range(0, count, WIDTH):
        row = tiles_ptr + 3 * (tile + first // WIDTH)
        tl.store(row, expert)
        tl.store(row + 1, place + first)
        tl.store(row + 2, tl.minimum(count - first, WIDTH))
    if expert == E - 1:
        for unused in range(tile + tl.cdiv(count, WIDTH), num_tiles):
            tl.store(tiles_ptr + 3 * unused + 2, 0)
    if count > 0:
        for first in range(0, P, CHUNK):
            chosen = tl.load(experts_ptr + first + offs, mask=first + offs < P, other=E).to(tl.int32)
            mine = (chosen == expert).to(tl.int32)
            tl.store(pairs_ptr + place + tl.cumsum(mine) - 1, first + offs, mask=mine != 0)
            place += tl.sum(mine)
