"""A tile against one split of latent attention: all of its scores, and the mixture of half the values' width.

Two programs share a tile: so the sums of a split and those of the splits before it fit the registers of one
program.
"""

import triton
import triton.language as tl

from outrider.kernels.triton.attention_splits import ROWS, SPLIT, load_columns, soften, token_rows


@triton.jit
def load_queries(
    latent_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    row: tl.tensor,
    half: tl.tensor,
    C: tl.constexpr,
    P: tl.constexpr,
    HALF: tl.constexpr,
    P_PADDED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The rows' own half of the latents, the other half, and the turned parts."""
    columns = tl.arange(0, HALF)
    latents = latent_ptr + row.to(tl.int64) * C
    own = load_columns(latents, half * HALF + columns, C, 2 * HALF)
    other = load_columns(latents, (1 - half) * HALF + columns, C, 2 * HALF)
    return own, other, load_columns(turned_ptr + row.to(tl.int64) * P, tl.arange(0, P_PADDED), P, P_PADDED)


@triton.jit
def mix_split(
    own: tl.tensor,
    other: tl.tensor,
    turned: tl.tensor,
    position: tl.tensor,
    half: tl.tensor,
    cache_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    split: tl.tensor,
    num_context: tl.tensor,
    scale: float,
    C: tl.constexpr,
    P: tl.constexpr,
    HALF: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Maximum, sum and mixture of one split for every row of a tile."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HALF], tl.float32)
    columns = tl.arange(0, HALF)
    end = tl.minimum(split * SPLIT + SPLIT, num_context)
    # Without these two options there are more copies of tiles, and more registers, than a program may have.
    for first in tl.range(split * SPLIT, end, BLOCK_N, disallow_acc_multi_buffer=True, disable_licm=True):
        tokens = first + tl.arange(0, BLOCK_N)
        rows = cache_ptr + token_rows(blocks_ptr, tokens, end, C + P, BLOCK_SIZE)
        values = load_columns(rows, half * HALF + columns, C, 2 * HALF)
        others = load_columns(rows, (1 - half) * HALF + columns, C, 2 * HALF)
        keys = load_columns(rows + C, tl.arange(0, P_PADDED), P, P_PADDED)
        scores = tl.dot(own, tl.trans(values), input_precision="ieee")
        scores = tl.dot(other, tl.trans(others), scores, input_precision="ieee")
        scores = tl.dot(turned, tl.trans(keys), scores, input_precision="ieee")
        visible = tokens[None, :] <= position[:, None]
        weights, factor, top, total = soften(scores, visible, top, total, scale)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * factor[:, None], input_precision="ieee")
    return top, total, mixed
