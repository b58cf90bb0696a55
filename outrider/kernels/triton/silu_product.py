"""The gated activation of dense feed-forward blocks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles

BLOCK_F = 1024


def silu_product(gate_up: Tensor) -> Tensor:
    """silu(left half) * right half: [T, 2 F] -> [T, F], in fp32, rounded once."""
    T, width = gate_up.shape
    product = torch.empty(T, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    silu_product_launch(gate_up, product).run()
    return product


def silu_product_launch(gate_up: Tensor, product: Tensor) -> Launch:
    """Rows [T, 2 F] of which the last dimension is dense."""
    T, F = product.shape
    return Launch(
        kernel=silu_product_kernel,
        grid=(T, num_tiles(F, BLOCK_F)),
        arguments={"gate_up_ptr": gate_up, "product_ptr": product, "stride": gate_up.stride(0), "F": F},
        constants={"BLOCK_F": BLOCK_F},
    )


@triton.jit
def silu_product_kernel(
    gate_up_ptr: tl.tensor, product_ptr: tl.tensor, stride: int, F: int, BLOCK_F: tl.constexpr
) -> None:
    """product = silu(gate) * up: gate_up [T, 2 F] -> product [T, F]."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = offs < F
    gate = tl.load(gate_up_ptr + row * stride + offs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + F + offs, mask=mask, other=0.0).to(tl.float32)
    product = silu(gate) * up
    tl.store(product_ptr + row * F + offs, product.to(product_ptr.dtype.element_ty), mask=mask)


@triton.jit
def silu(x: tl.tensor) -> tl.tensor:
    """x * sigmoid(x) in fp32."""
    return x / (1 + tl.exp(-x))
