"""Norm and activation by torch's own fused operations."""

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight (fp32) over the last dimension, in fp32, rounded once."""
    return F.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)


def add_rms_norm(x: Tensor, addend: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum x + addend, rounded to their type, and the sum normalised."""
    total = x + addend
    return total, rms_norm(total, weight, epsilon)


def silu_product(gate_up: Tensor) -> Tensor:
    """silu(left half) * right half: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
