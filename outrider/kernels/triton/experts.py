"""Routed experts: pairs sorted by expert, two products over their tiles, outputs put back unsummed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.triton.align import Alignment, align
from outrider.kernels.triton.experts_fp8 import check_halves, ordered_scales, pack_fp8, room_for_scales
from outrider.kernels.triton.experts_int4 import pack_int4
from outrider.kernels.triton.experts_plain import pack_plain
from outrider.kernels.triton.grouped_product import down_kernel, gate_up_kernel
from outrider.kernels.triton.launch import Argument, Launch
from outrider.kernels.triton.quantize import quantize_rows
from outrider.kernels.triton.tiles import num_tiles
from outrider.kernels.weights import Fp8Weight, Int4Weight, StoredWeight, to_plain

Storage: TypeAlias = Literal["plain", "fp8", "int4"]
Stored = TypeVar("Stored", Tensor, Fp8Weight, Int4Weight)


@dataclass(frozen=True, kw_only=True)
class StackedWeight:
    """One product's weights of all experts, in the layout of its storage."""

    storage: Storage
    shape: tuple[int, int, int]  # E, N, K
    values: Tensor
    scales: Tensor | None = None

    @property
    def block_k(self) -> int:
        """Inputs that are multiplied at a time: those of an int4 or FP8 block, else 128 bytes of a row."""
        return 128 if self.storage != "plain" else 128 // self.values.itemsize


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """The experts' two products."""

    gate_up: StackedWeight  # [2 F, D] each
    down: StackedWeight  # [D, F] each
    num_slots: int  # those that tokens choose among, on all ranks


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Inputs of a product [T, K]; those of FP8 products are e4m3, with factors [blocks, T * A] by place."""

    values: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ExpertTile:
    """How many of a weight's outputs a program computes for a tile of pairs, and by what."""

    block_m: int
    num_warps: int
    num_stages: int


TILES: dict[tuple[Storage, int], ExpertTile] = {
    ("int4", 16): ExpertTile(block_m=128, num_warps=4, num_stages=4),
    ("int4", 32): ExpertTile(block_m=128, num_warps=4, num_stages=4),
    ("int4", 64): ExpertTile(block_m=128, num_warps=8, num_stages=4),
    ("int4", 128): ExpertTile(block_m=128, num_warps=8, num_stages=3),
    ("fp8", 16): ExpertTile(block_m=256, num_warps=8, num_stages=4),
    ("fp8", 32): ExpertTile(block_m=256, num_warps=8, num_stages=4),
    ("fp8", 64): ExpertTile(block_m=256, num_warps=8, num_stages=4),
    ("plain", 16): ExpertTile(block_m=128, num_warps=4, num_stages=4),
    ("plain", 32): ExpertTile(block_m=128, num_warps=4, num_stages=4),
    ("plain", 64): ExpertTile(block_m=128, num_warps=8, num_stages=4),
    ("plain", 128): ExpertTile(block_m=128, num_warps=8, num_stages=4),
}
"""By storage and pairs of a tile: none of it shows in the bits of an output."""


def tile_width(num_pairs: int, num_slots: int, storage: Storage) -> int:
    """Pairs of a tile: what an expert gets on average, so that most read their weights once."""
    average = num_tiles(num_pairs, num_slots)
    return min(
        max(16, 1 << (average - 1).bit_length()), max(width for kind, width in TILES if kind == storage)
    )


def pack_experts(
    gate_up: Sequence[StoredWeight], down: Sequence[StoredWeight], *, num_slots: int | None = None
) -> ExpertWeights:
    """Copies each expert's [2 F, D] and [D, F], one after another, into one tensor for each product."""
    if isinstance(gate_up[0], Fp8Weight):
        check_halves(gate_up[0])
    return ExpertWeights(gate_up=stack(gate_up), down=stack(down), num_slots=num_slots or len(down))


def replace_expert(weights: ExpertWeights, slot: int, gate_up: StoredWeight, down: StoredWeight) -> None:
    """Puts another expert where one lies, in place: graphs that were captured go on with it."""
    pairs = [(weights.gate_up, like(weights.gate_up, gate_up)), (weights.down, like(weights.down, down))]
    for stacked, one in pairs:
        stacked.values[slot].copy_(one.values[0])
        if stacked.scales is not None and one.scales is not None:
            stacked.scales[slot].copy_(one.scales[0])


def like(stacked: StackedWeight, weight: StoredWeight) -> StackedWeight:
    """One expert's weight in the layout of others; raises ValueError where it can have none."""
    # Where a layer's experts are not stored alike they were packed plain.
    one = stack([to_plain(weight) if stacked.storage == "plain" else weight])
    if (one.storage, one.shape[1:]) != (stacked.storage, stacked.shape[1:]):
        raise ValueError(
            f"{one.storage} {one.shape[1:]} cannot replace {stacked.storage} {stacked.shape[1:]}"
        )
    return one


def stack(weights: Sequence[StoredWeight]) -> StackedWeight:
    """The weights [N, K] of all experts as one; raises ValueError where they are stored differently."""
    N, K = weights[0].shape
    shape = (len(weights), N, K)
    if all_are(weights, Int4Weight):
        values, scales = pack_int4(weights)
        return StackedWeight(storage="int4", shape=shape, values=values, scales=scales)
    if all_are(weights, Fp8Weight):
        values, scales = pack_fp8(weights)
        return StackedWeight(storage="fp8", shape=shape, values=values, scales=scales)
    if all_are(weights, Tensor):
        return StackedWeight(storage="plain", shape=shape, values=pack_plain(weights))
    raise ValueError("weights that are stored differently cannot be stacked")


def all_are(weights: Sequence[StoredWeight], kind: type[Stored]) -> TypeGuard[Sequence[Stored]]:
    return all(isinstance(weight, kind) for weight in weights)


def experts(x: Tensor, choice: Choice, weights: ExpertWeights) -> Tensor:
    """The chosen experts' outputs, unweighted and unsummed: [T, D] -> [T, A, D]."""
    T, A = choice.experts.shape
    E, D, F = weights.down.shape
    storage = weights.gate_up.storage
    alignment = align(choice.experts.contiguous(), E, tile_width(T * A, weights.num_slots, storage))
    inputs = rows_of(x.contiguous(), alignment, storage)
    hidden = empty_rows(alignment, F, x, storage)
    outputs = x.new_empty(T, A, D)
    gate_up_launch(inputs, alignment, weights.gate_up, hidden).run()
    down_launch(hidden, alignment, weights.down, outputs).run()
    return outputs


def rows_of(x: Tensor, alignment: Alignment, storage: Storage) -> Rows:
    """Inputs [T, K] as the products take them."""
    if storage != "fp8":
        return Rows(values=x)
    values, scales = quantize_rows(x)
    return Rows(values=values, scales=ordered_scales(scales, alignment, *x.shape))


def empty_rows(alignment: Alignment, K: int, like: Tensor, storage: Storage) -> Rows:
    """Room for inputs [T * A, K] in the order of the sorted pairs."""
    P = len(alignment.pairs)
    if storage != "fp8":
        return Rows(values=like.new_empty(P, K))
    values = torch.empty(P, K, dtype=torch.float8_e4m3fn, device=like.device)
    return Rows(values=values, scales=room_for_scales(alignment, K))


def gate_up_launch(x: Rows, alignment: Alignment, weight: StackedWeight, hidden: Rows) -> Launch:
    """Hidden [T * A, F], in the order of the sorted pairs, of x [T, D] by weights [E, 2 F, D]."""
    _, N, D = weight.shape
    F = N // 2
    P = len(alignment.pairs)
    arguments, constants = present(
        x_ptr=x.values,
        x_scales_ptr=x.scales,
        w_ptr=weight.values,
        w_scales_ptr=weight.scales,
        pairs_ptr=alignment.pairs,
        tiles_ptr=alignment.tiles,
        hidden_ptr=hidden.values,
        hidden_scales_ptr=hidden.scales,
        x_scales_stride=0 if x.scales is None else x.scales.stride(0),
        hidden_scales_stride=0 if hidden.scales is None else hidden.scales.stride(0),
    )
    constants |= {"A": P // len(x.values) if P else 1, "D": D, "F": F}
    return tile_launch(gate_up_kernel, arguments, constants, alignment, weight, 2)


def down_launch(hidden: Rows, alignment: Alignment, weight: StackedWeight, outputs: Tensor) -> Launch:
    """Outputs [T, A, D] of hidden [T * A, F], in the order of the sorted pairs, by weights [E, D, F]."""
    _, D, F = weight.shape
    arguments, constants = present(
        hidden_ptr=hidden.values,
        hidden_scales_ptr=hidden.scales,
        w_ptr=weight.values,
        w_scales_ptr=weight.scales,
        pairs_ptr=alignment.pairs,
        tiles_ptr=alignment.tiles,
        y_ptr=outputs,
        hidden_scales_stride=0 if hidden.scales is None else hidden.scales.stride(0),
    )
    return tile_launch(down_kernel, arguments, constants | {"D": D, "F": F}, alignment, weight, 1)


def present(**values: Argument | None) -> tuple[dict[str, Argument], dict[str, Any]]:
    """Arguments, and as constants those that this storage has not."""
    given = {name: value for name, value in values.items() if value is not None}
    return given, {name: None for name in values if name not in given}


def tile_launch(
    kernel: Any,
    arguments: dict[str, Argument],
    constants: dict[str, Any],
    alignment: Alignment,
    weight: StackedWeight,
    rows_per_output: int,
) -> Launch:
    """A program for each tile of pairs and each BLOCK_M of the weight's outputs."""
    tile = TILES[weight.storage, alignment.width]
    block_m = tile.block_m if rows_per_output == 2 or weight.storage != "fp8" else tile.block_m // 2
    return Launch(
        kernel=kernel,
        # Tiles of pairs first: all that need the same outputs' weights run at the same time.
        grid=(len(alignment.tiles), num_tiles(weight.shape[1], block_m)),
        arguments=arguments,
        constants=constants
        | {
            "STORAGE": weight.storage,
            "BLOCK_M": block_m,
            "WIDTH": alignment.width,
            "BLOCK_K": weight.block_k,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
