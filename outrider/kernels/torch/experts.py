"""Routed experts: rows sorted by expert and padded to whole tiles, outputs put back unsummed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.torch.linear import Weight, pack_linear
from outrider.kernels.torch.silu_product import silu_product
from outrider.kernels.torch.tiles import TILE_ROWS


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Each expert's two products."""

    gate_up: list[Weight]  # E of [D, 2 F]
    down: list[Weight]  # E of [F, D]


@dataclass(frozen=True, kw_only=True)
class ExpertTiles:
    """Which (token, choice) pair sits in which row of which tile."""

    experts: list[int]  # one per tile
    pairs: Tensor  # [T * A] pairs t * A + a, sorted by expert
    rows: Tensor  # [T * A] the row of each of those pairs


def pack_experts(gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> ExpertWeights:
    """Each expert's [2 F, D] and [D, F]."""
    return ExpertWeights(gate_up=[pack_linear(w) for w in gate_up], down=[pack_linear(w) for w in down])


def experts(x: Tensor, choice: Choice, weights: ExpertWeights) -> Tensor:
    """The chosen experts' outputs, unweighted and unsummed: [T, D] -> [T, A, D]."""
    T, A = choice.experts.shape
    tiles = arrange(choice.experts, len(weights.down))
    inputs = x.new_zeros(len(tiles.experts) * TILE_ROWS, x.shape[1])
    inputs.index_copy_(0, tiles.rows, x.index_select(0, tiles.pairs // A))
    hidden = silu_product(product_by_tile(inputs, tiles.experts, weights.gate_up))
    outputs = product_by_tile(hidden, tiles.experts, weights.down)
    unsummed = x.new_empty(T * A, x.shape[1])
    unsummed.index_copy_(0, tiles.pairs, outputs.index_select(0, tiles.rows))
    return unsummed.view(T, A, -1)


def arrange(chosen: Tensor, num_experts: int) -> ExpertTiles:
    """Lay out [T, A] choices so that every tile belongs to one expert."""
    flat = chosen.flatten()
    pairs = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    num_tiles = (counts + TILE_ROWS - 1) // TILE_ROWS
    # A pair's row: its place among all pairs, moved on by the padding of the experts before its own.
    padding = num_tiles * TILE_ROWS - counts
    moved = (padding.cumsum(0) - padding).index_select(0, flat.index_select(0, pairs))
    tile_experts = [expert for expert, n in enumerate(num_tiles.tolist()) for _ in range(n)]
    rows = torch.arange(len(flat), device=flat.device) + moved
    return ExpertTiles(experts=tile_experts, pairs=pairs, rows=rows)


def product_by_tile(x: Tensor, tile_experts: list[int], weights: list[Weight]) -> Tensor:
    """Each tile of x [rows, K] by the weight of its expert."""
    y = x.new_empty(len(x), weights[0].values.shape[1])
    for expert, tile, out in zip(tile_experts, x.split(TILE_ROWS), y.split(TILE_ROWS), strict=True):
        torch.mm(tile, weights[expert].values, out=out)
    return y


def combine(outputs: Tensor, choice: Choice, shared: Tensor | None) -> Tensor:
    """Weigh [T, A, D] and add in the token's own order in fp32, the shared expert last: -> [T, D].

    One addition after another: torch's sum would choose an order by itself.
    """
    weighted = outputs.float() * choice.weights[..., None]
    total = weighted[:, 0]
    for a in range(1, weighted.shape[1]):
        total = total + weighted[:, a]
    if shared is not None:
        total = total + shared.float()
    return total.to(outputs.dtype)
