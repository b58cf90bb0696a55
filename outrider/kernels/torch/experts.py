"""Routed experts: rows sorted by expert and padded to whole tiles, outputs put back unsummed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.torch.linear import Weight, pack_linear
from outrider.kernels.torch.silu_product import silu_product
from outrider.kernels.torch.tiles import TILE_ROWS, cut_rows, padded_rows
from outrider.kernels.weights import StoredWeight, to_plain


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Each expert's two products."""

    gate_up: list[Weight]  # E of [D, 2 F]
    down: list[Weight]  # E of [F, D]

    @property
    def wide_rows(self) -> tuple[int, ...]:
        """The wide tiles that neither product's bits show."""
        return tuple(rows for rows in self.gate_up[0].wide_rows if rows in self.down[0].wide_rows)


@dataclass(frozen=True, kw_only=True)
class ExpertTiles:
    """Which (token, choice) pair sits in which row of which tile."""

    experts: list[int]  # one per tile
    sizes: list[int]  # rows of each tile
    pairs: Tensor  # pairs t * A + a that choose one of the experts, sorted by it
    rows: Tensor  # the row of each of those pairs


def pack_experts(
    gate_up: Sequence[StoredWeight], down: Sequence[StoredWeight], *, num_slots: int | None = None
) -> ExpertWeights:
    """Each expert's [2 F, D] and [D, F]; how many there are elsewhere shows in no product."""
    return ExpertWeights(gate_up=[pack_linear(w) for w in gate_up], down=[pack_linear(w) for w in down])


def replace_expert(weights: ExpertWeights, slot: int, gate_up: StoredWeight, down: StoredWeight) -> None:
    """Put another expert's weights in the place of a packed one's."""
    weights.gate_up[slot].values.copy_(to_plain(gate_up).t())
    weights.down[slot].values.copy_(to_plain(down).t())


def experts(x: Tensor, choice: Choice, weights: ExpertWeights) -> Tensor:
    """The chosen experts' outputs, unweighted and unsummed: [T, D] -> [T, A, D]."""
    T, A = choice.experts.shape
    tiles = arrange(choice.experts, len(weights.down), weights.wide_rows)
    inputs = x.new_zeros(sum(tiles.sizes), x.shape[1])
    inputs.index_copy_(0, tiles.rows, x.index_select(0, tiles.pairs // A))
    hidden = silu_product(product_by_tile(inputs, tiles, weights.gate_up))
    outputs = product_by_tile(hidden, tiles, weights.down)
    unsummed = x.new_empty(T * A, x.shape[1])
    unsummed.index_copy_(0, tiles.pairs, outputs.index_select(0, tiles.rows))
    return unsummed.view(T, A, -1)


def arrange(chosen: Tensor, num_experts: int, wide_rows: tuple[int, ...]) -> ExpertTiles:
    """Lay out [T, A] choices so that every tile belongs to one expert."""
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=num_experts)[:num_experts]
    num_rows = counts.tolist()
    # Those that choose none of the experts stand last.
    pairs = flat.argsort(stable=True)[: sum(num_rows)]
    # A pair's row: its place among all pairs, moved on by the padding of the experts before its own.
    padding = -counts % TILE_ROWS
    moved = (padding.cumsum(0) - padding).index_select(0, flat.index_select(0, pairs))
    rows = torch.arange(len(pairs), device=flat.device) + moved
    cuts = [
        (expert, size) for expert, n in enumerate(num_rows) for size in cut_rows(padded_rows(n), wide_rows)
    ]
    return ExpertTiles(experts=[e for e, _ in cuts], sizes=[size for _, size in cuts], pairs=pairs, rows=rows)


def product_by_tile(x: Tensor, tiles: ExpertTiles, weights: list[Weight]) -> Tensor:
    """Each tile of x [rows, K] by the weight of its expert."""
    y = x.new_empty(len(x), weights[0].values.shape[1])
    for expert, tile, out in zip(tiles.experts, x.split(tiles.sizes), y.split(tiles.sizes), strict=True):
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
