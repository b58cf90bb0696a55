"""Root mean square normalisation (arXiv 1910.07467)."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight (fp32) over the last dimension, in fp32, rounded once.

    torch reduces each contiguous row by itself, so its order of additions depends on the row's width alone.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * scale * weight).to(x.dtype)


def add_rms_norm(x: Tensor, addend: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum x + addend, rounded to their type, and the sum normalised."""
    total = x + addend
    return total, rms_norm(total, weight, epsilon)
