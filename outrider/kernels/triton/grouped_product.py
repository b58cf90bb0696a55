"""The two products of the experts: tiles of one expert's tokens by some of its outputs."""

import triton
import triton.language as tl

from outrider.kernels.triton.experts_fp8 import fp8_product
from outrider.kernels.triton.experts_int4 import int4_product
from outrider.kernels.triton.experts_plain import plain_product
from outrider.kernels.triton.quantize import block_scales
from outrider.kernels.triton.silu_product import silu


@triton.jit
def gate_up_kernel(
    x_ptr: tl.tensor,
    x_scales_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    hidden_ptr: tl.tensor,
    hidden_scales_ptr: tl.tensor,
    x_scales_stride: int,
    hidden_scales_stride: int,
    A: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    STORAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """hidden[p] = silu(gate) * up, both x[pair[p] / A] by the halves of its expert's weight [2 F, D].

    x [T, D] -> hidden [T * A, F] in the order of the sorted pairs; of FP8 rounded to it, with factors for its
    blocks. A program takes BLOCK_M / 2 outputs of a tile of pairs.
    """
    count = num_pairs(tiles_ptr)
    if count == 0:
        return
    expert, first_place, places, pairs, live = tile_pairs(tiles_ptr, pairs_ptr, count, WIDTH)
    tokens = (pairs // A).to(tl.int64)
    # Eight rows of the gate, then the eight of the same outputs of up: a thread of Hopper's products has both
    # row r and row r + 8. Past the edge the last output is repeated: it costs no mask.
    m = tl.arange(0, BLOCK_M)
    outputs = tl.program_id(1) * (BLOCK_M // 2) + m // 16 * 8 + m % 8
    rows = tl.minimum(outputs, F - 1) + m // 8 % 2 * F
    gate_block = tl.program_id(1) * (BLOCK_M // 2) // BLOCK_K
    both = product(
        x_ptr, x_scales_ptr, x_scales_stride, w_ptr, w_scales_ptr, expert,
        gate_block, gate_block + F // BLOCK_K, rows, tokens, first_place, live,
        2 * F, D, STORAGE, BLOCK_M, WIDTH, BLOCK_K,
    )  # fmt: skip
    hidden = gated(both, BLOCK_M, WIDTH)
    outputs = tl.program_id(1) * (BLOCK_M // 2) + tl.arange(0, BLOCK_M // 2)
    if STORAGE == "fp8":
        # What a tile has read past its own pairs may be anything.
        hidden = tl.where(live[None, :], hidden, 0.0)
        scales = block_scales(tl.trans(hidden))
        scale_ptrs = hidden_scales_ptr + tl.program_id(1) * hidden_scales_stride + places
        tl.store(scale_ptrs, scales, mask=live)
        hidden = hidden / scales[None, :]
    hidden_ptrs = hidden_ptr + places[None, :] * F + outputs[:, None]
    tl.store(hidden_ptrs, hidden, mask=live[None, :] & (outputs < F)[:, None])


@triton.jit
def gated(both: tl.tensor, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """silu(gate) * up of rows that take turns by eight: [BLOCK_M, WIDTH] -> [BLOCK_M / 2, WIDTH]."""
    halves = tl.permute(tl.reshape(both, (BLOCK_M // 16, 2, 8, WIDTH)), (0, 2, 3, 1))
    gate, up = tl.split(halves)
    return tl.reshape(silu(gate) * up, (BLOCK_M // 2, WIDTH))


@triton.jit
def down_kernel(
    hidden_ptr: tl.tensor,
    hidden_scales_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    y_ptr: tl.tensor,
    hidden_scales_stride: int,
    D: tl.constexpr,
    F: tl.constexpr,
    STORAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """y[pair[p]] = hidden[p] by its expert's weight [D, F].

    hidden [T * A, F] in the order of the sorted pairs -> y [T * A, D] in that of the pairs. A program takes
    BLOCK_M outputs of a tile of pairs.
    """
    count = num_pairs(tiles_ptr)
    if count == 0:
        return
    expert, first_place, places, pairs, live = tile_pairs(tiles_ptr, pairs_ptr, count, WIDTH)
    outputs = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = tl.minimum(outputs, D - 1)
    block = tl.program_id(1) * BLOCK_M // BLOCK_K
    y = product(
        hidden_ptr, hidden_scales_ptr, hidden_scales_stride, w_ptr, w_scales_ptr, expert,
        block, block, rows, places, first_place, live,
        D, F, STORAGE, BLOCK_M, WIDTH, BLOCK_K,
    )  # fmt: skip
    y_ptrs = y_ptr + pairs.to(tl.int64)[None, :] * D + outputs[:, None]
    tl.store(y_ptrs, y, mask=live[None, :] & (outputs < D)[:, None])


@triton.jit
def num_pairs(tiles_ptr: tl.tensor) -> tl.tensor:
    """How many pairs the program's tile has."""
    return tl.load(tiles_ptr + 3 * tl.program_id(0) + 2)


@triton.jit
def tile_pairs(
    tiles_ptr: tl.tensor, pairs_ptr: tl.tensor, count: tl.tensor, WIDTH: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The program's tile: its expert, its first place, its places, their pairs, and which of them it has."""
    tile = tiles_ptr + 3 * tl.program_id(0)
    live = tl.arange(0, WIDTH) < count
    first_place = tl.load(tile + 1)
    places = (first_place + tl.arange(0, WIDTH)).to(tl.int64)
    pairs = tl.load(pairs_ptr + places, mask=live, other=0)
    return tl.load(tile).to(tl.int64), first_place, places, pairs, live


@triton.jit
def product(
    x_ptr: tl.tensor,
    x_scales_ptr: tl.tensor,
    x_scales_stride: int,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    expert: tl.tensor,
    even_block: tl.tensor,
    odd_block: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    first_place: tl.tensor,
    live: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    STORAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Outputs `rows` of an expert for some tokens, fp32 [BLOCK_M, WIDTH], however its weights are stored."""
    if STORAGE == "int4":
        total = int4_product(
            x_ptr, w_ptr, w_scales_ptr, expert, rows, tokens, live, N, K, BLOCK_M, WIDTH, BLOCK_K
        )
    elif STORAGE == "fp8":
        total = fp8_product(
            x_ptr, x_scales_ptr, x_scales_stride, w_ptr, w_scales_ptr, expert, even_block, odd_block, rows,
            tokens, first_place, live, N, K, BLOCK_M, WIDTH, BLOCK_K,
        )  # fmt: skip
    else:
        total = plain_product(x_ptr, w_ptr, expert, rows, tokens, live, N, K, BLOCK_M, WIDTH, BLOCK_K)
    return total
