"""Products with weights, whatever these are stored as."""

from dataclasses import replace

import torch
from torch import Tensor

from outrider.kernels.triton.fp8_product import fp8_product_launch
from outrider.kernels.triton.fp32_product import fp32_product_launch
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.plain_product import plain_product_launch
from outrider.kernels.triton.quantize import quantize_rows
from outrider.kernels.weights import Fp8Weight, Int4Weight, StoredWeight


def pack_linear(weight: StoredWeight) -> Tensor | Fp8Weight:
    """[N, K] as it is stored; int4, which checkpoints have in experts alone, as plain numbers."""
    if isinstance(weight, Fp8Weight):
        return replace(weight, values=weight.values.contiguous(), scales=weight.scales.contiguous())
    return (weight.to_plain() if isinstance(weight, Int4Weight) else weight).contiguous()


def linear(x: Tensor, weight: Tensor | Fp8Weight) -> Tensor:
    """[T, K] x [N, K] -> [T, N]."""
    y = x.new_empty(x.shape[0], weight.shape[0])
    if isinstance(weight, Fp8Weight):
        fp8_product_launch(*quantize_rows(x), weight, y).run()
    else:
        product_launch(x[:, None], weight[None], y[:, None]).run()
    return y


def product_launch(x: Tensor, weight: Tensor, y: Tensor) -> Launch:
    """y [T, H, N] = x [T, H, K] by weights [H, N, K] of the same type."""
    if x.dtype != weight.dtype:
        raise ValueError(f"inputs of {x.dtype} do not fit a weight of {weight.dtype}")
    return (fp32_product_launch if x.dtype == torch.float32 else plain_product_launch)(x, weight, y)
