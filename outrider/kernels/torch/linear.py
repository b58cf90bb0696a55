"""Products with weights, tile by tile."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.torch.tiles import cut_rows, equal_wide_rows, pad_rows


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight [K, N], or [H, K, N] for heads, in the type that products with it are computed in."""

    values: Tensor
    wide_rows: tuple[int, ...]


def pack_linear(weight: Tensor) -> Weight:
    """[N, K] -> [K, N]: in this order small fp32 products run two to four times as fast."""
    return pack(weight.t())


def pack_head_linear(weight: Tensor) -> Weight:
    """[H, K, N] as it is."""
    return pack(weight)


def pack(weight: Tensor) -> Weight:
    held = weight.to(product_dtype(weight)).contiguous()
    return Weight(values=held, wide_rows=equal_wide_rows(held))


def product_dtype(weight: Tensor) -> torch.dtype:
    """The weight's own type where the processor multiplies it, else fp32, which holds the same values.

    A library that emulates bf16 products takes four times as long as it takes for fp32.
    """
    instructions = {torch.bfloat16: ("amx_bf16", "avx512_bf16"), torch.float16: ("amx_fp16", "avx512_fp16")}
    if weight.device.type != "cpu" or weight.dtype not in instructions:
        return weight.dtype
    processor = torch.cpu.get_capabilities()
    native = any(processor.get(name, False) for name in instructions[weight.dtype])
    return weight.dtype if native else torch.float32


def linear(x: Tensor, weight: Weight) -> Tensor:
    """[T, K] x [K, N] -> [T, N]."""
    rows = pad_rows(x.to(weight.values.dtype))
    sizes = cut_rows(rows.shape[0], weight.wide_rows)
    tiles = [torch.mm(tile, weight.values) for tile in rows.split(sizes)]
    y = tiles[0] if len(tiles) == 1 else torch.cat(tiles)
    return y[: x.shape[0]].to(x.dtype)


def head_linear(x: Tensor, weight: Weight) -> Tensor:
    """[T, H, K] x [H, K, N] -> [T, H, N]."""
    rows = pad_rows(x.to(weight.values.dtype)).transpose(0, 1)
    sizes = cut_rows(rows.shape[1], weight.wide_rows)
    tiles = [torch.bmm(tile, weight.values) for tile in rows.split(sizes, dim=1)]
    y = tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=1)
    return y[:, : x.shape[0]].transpose(0, 1).to(x.dtype)
