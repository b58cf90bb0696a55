"""Rotary position embedding (arXiv 2104.09864) of already computed angles."""

import torch
from torch import Tensor

from outrider.kernels.interface import Angles


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn the pairs of x [T, H, P]; in fp32, rounded once.

    The result holds first members, then second ones, however the pairs lay: queries and keys come out in the
    same order, which is all that their products need.
    """
    wide = x.float()
    first, second = (wide[..., 0::2], wide[..., 1::2]) if angles.interleaved else wide.chunk(2, dim=-1)
    cos, sin = angles.cos[:, None], angles.sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
