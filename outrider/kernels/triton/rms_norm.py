"""Root mean square normalisation (arXiv 1910.07467), alone or with the addition before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import padded_size


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight (fp32) over the last dimension, in fp32, rounded once."""
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(x, None, weight, epsilon, x, normed).run()
    return normed


def add_rms_norm(x: Tensor, addend: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum x + addend, rounded to their type, and the sum normalised."""
    total, normed = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    rms_norm_launch(x, addend, weight, epsilon, total, normed).run()
    return total, normed


def rms_norm_launch(
    x: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float, total: Tensor, normed: Tensor
) -> Launch:
    """Rows [T, D] of which the last dimension is dense; total is written only where there is an addend."""
    T, D = x.shape
    block_d = padded_size(D)
    return Launch(
        kernel=rms_norm_kernel,
        grid=(T,),
        arguments={
            "x_ptr": x,
            "addend_ptr": x if addend is None else addend,
            "weight_ptr": weight,
            "total_ptr": total,
            "normed_ptr": normed,
            "x_stride": x.stride(0),
            "addend_stride": x.stride(0) if addend is None else addend.stride(0),
            "epsilon": epsilon,
        },
        constants={"D": D, "BLOCK_D": block_d, "ADDS": addend is not None},
        num_warps=row_warps(block_d),
    )


def row_warps(block: int) -> int:
    """Warps for a row: one reads 512 elements, 16 to a thread; a row is a program's whole work."""
    return min(16, max(1, block // 512))


@triton.jit
def rms_norm_kernel(
    x_ptr: tl.tensor,
    addend_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    total_ptr: tl.tensor,
    normed_ptr: tl.tensor,
    x_stride: int,
    addend_stride: int,
    epsilon: float,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """total = x + addend; normed = total / sqrt(mean(total^2) + epsilon) * weight.

    Rows [T, D], weight [D] fp32; a program takes one row. total and normed are contiguous.
    """
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK_D)
    mask = offs < D
    x = tl.load(x_ptr + row * x_stride + offs, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        addend = tl.load(addend_ptr + row * addend_stride + offs, mask=mask, other=0.0)
        total = (x + addend.to(tl.float32)).to(addend.dtype)
        tl.store(total_ptr + row * D + offs, total, mask=mask)
        x = total.to(tl.float32)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    tl.store(normed_ptr + row * D + offs, normalized(x, weight, epsilon, D), mask=mask)


@triton.jit
def normalized(x: tl.tensor, weight: tl.tensor, epsilon: float, D: tl.constexpr) -> tl.tensor:
    """A row of D elements, padded with zeros: x / sqrt(mean(x^2) + epsilon) * weight, all in fp32."""
    return x * tl.rsqrt(tl.sum(x * x, axis=0) / D + epsilon) * weight
