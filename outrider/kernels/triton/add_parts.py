"""What the ranks computed of one layer becomes its output."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles

BLOCK_D = 1024


def add_parts(parts: Tensor) -> Tensor:
    """Add in rank order in fp32, rounded once: [R, T, D] -> [T, D]."""
    total = torch.empty(parts.shape[1:], dtype=parts.dtype, device=parts.device)
    add_parts_launch(parts, total).run()
    return total


def add_parts_launch(parts: Tensor, total: Tensor) -> Launch:
    """Parts [R, T, D] of which the last two dimensions are dense."""
    T, D = total.shape
    return Launch(
        kernel=add_parts_kernel,
        grid=(T, num_tiles(D, BLOCK_D)),
        arguments={"parts_ptr": parts, "total_ptr": total, "stride": parts.stride(0), "D": D},
        constants={"R": parts.shape[0], "BLOCK_D": BLOCK_D},
    )


@triton.jit
def add_parts_kernel(
    parts_ptr: tl.tensor, total_ptr: tl.tensor, stride: int, D: int, R: tl.constexpr, BLOCK_D: tl.constexpr
) -> None:
    """total = parts[0] + parts[1] + ..., one after another: parts [R, T, D] -> total [T, D]."""
    offs = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = offs < D
    place = tl.program_id(0).to(tl.int64) * D + offs
    parts = parts_ptr + place
    total = tl.load(parts, mask=mask).to(tl.float32)
    for r in range(1, R):
        total = total + tl.load(parts + r * stride, mask=mask).to(tl.float32)
    tl.store(total_ptr + place, total, mask=mask)
