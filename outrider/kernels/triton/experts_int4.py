"""Experts' int4 weights: laid out for their product, and unpacked in registers (docs/decisions/0018)."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from outrider.kernels.triton.tiles import num_tiles
from outrider.kernels.weights import INT4_GROUP, Int4Weight

BLOCK_K = 128
COLUMNS = BLOCK_K // 8  # int32 of a block
GROUPS = BLOCK_K // INT4_GROUP
SCALING = 64.0
"""The packed scales are the checkpoint's times this: unpacking yields values divided by it."""


def pack_int4(weights: Sequence[Int4Weight]) -> tuple[Tensor, Tensor]:
    """E weights [N, K] as int32 [E, blocks, N, COLUMNS] and scales int64 [E, blocks, N], four bf16 each.

    Blocks are BLOCK_K inputs, the last one filled up with scales of zero. In a block, bits 4 j + 16 h of
    column i hold input 32 j + 2 i + h, plus 8: a mask leaves two neighbours of group j in the halves of a
    register, where a tensor-core product takes them, and inputs keep their order. In the checkpoint's order a
    register has inputs four apart, so that all inputs would have to be gathered. The outputs of a block lie
    side by side: a program reads one piece of memory at a time.
    """
    N, K = weights[0].shape
    blocks = num_tiles(K, BLOCK_K)
    device = weights[0].packed.device
    missing = blocks * BLOCK_K - K
    packed = torch.empty(len(weights), blocks, N, COLUMNS, dtype=torch.int32, device=device)
    scales = torch.empty(len(weights), blocks, N, GROUPS, dtype=torch.bfloat16, device=device)
    for expert, weight in enumerate(weights):
        packed[expert] = reordered(pad(weight.packed, (0, missing // 8))).transpose(0, 1)
        scaled = pad(weight.scales * SCALING, (0, missing // INT4_GROUP))
        scales[expert] = scaled.view(N, blocks, GROUPS).transpose(0, 1)
    return packed, scales.view(torch.int64).squeeze(-1)


def reordered(packed: Tensor) -> Tensor:
    """The checkpoint's int32 [N, K / 8], of whole blocks, as [N, blocks, COLUMNS] in pack_int4's order."""
    nibbles = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    values = (packed[..., None] >> nibbles & 15).view(len(packed), -1, GROUPS, COLUMNS, 2)
    # Group j and half h of a block go to bits 4 j + 16 h.
    return (values << nibbles.view(2, GROUPS).t()[:, None]).sum((2, 4), dtype=torch.int32)


@triton.jit
def int4_product(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    expert: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    live: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Outputs `rows` of an expert for some tokens, fp32 [BLOCK_M, WIDTH]: block by block in one fixed order.

    x [T, K], w [E, blocks, N, 16] int32, scales [E, blocks, N] int64, as pack_int4 makes them.
    """
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    COLUMNS: tl.constexpr = BLOCK_K // 8
    offs_k = tl.arange(0, BLOCK_K)
    first_row = expert * BLOCKS * N + rows
    w_ptrs = w_ptr + first_row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    scale_ptrs = w_scales_ptr + first_row
    x_ptrs = x_ptr + tokens[None, :] * K + offs_k[:, None]
    total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        packed = tl.load(w_ptrs)
        scales = tl.load(scale_ptrs)
        if K % BLOCK_K == 0:
            x = tl.load(x_ptrs, mask=live[None, :], other=0.0)
        else:
            x = tl.load(x_ptrs, mask=live[None, :] & (offs_k < K - first)[:, None], other=0.0)
        even = tl.join(group(packed, scales, 0, x.dtype), group(packed, scales, 2, x.dtype))
        odd = tl.join(group(packed, scales, 1, x.dtype), group(packed, scales, 3, x.dtype))
        w = tl.permute(tl.join(even, odd), (0, 3, 4, 1, 2))  # [BLOCK_M, j / 2, j % 2, i, h]
        total = tl.dot(tl.reshape(w, (BLOCK_M, BLOCK_K)), x, total, input_precision="ieee")
        w_ptrs += N * COLUMNS
        scale_ptrs += N
        x_ptrs += BLOCK_K
    return total


@triton.jit
def group(packed: tl.tensor, scales: tl.tensor, J: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """Group J of a block, [M, 16, 2] of packed [M, 16]: value * scale, rounded once to the inputs' type."""
    scale = ((scales >> (16 * J)) & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)[:, None, None]
    if dtype == tl.bfloat16:
        # Four low bits b of a bf16 are the number b * 2^-133, and so are the next four: they need no shift
        # down, and no exponent put above them. One multiplication and addition make (b - 8) / 64.
        pair = (packed >> (8 * (J // 2))) & (0x00F000F0 if J % 2 else 0x000F000F)
        low = (pair & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        high = ((pair >> 16) & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        return (tl.join(low, high) * (2.0**123 if J % 2 else 2.0**127) - 0.125) * scale
    low = (packed >> (4 * J)) & 15
    high = (packed >> (4 * J + 16)) & 15
    return ((tl.join(low, high).to(tl.float32) - 8) * (scale.to(tl.float32) / 64.0)).to(dtype)
