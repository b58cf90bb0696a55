"""Rotary position embedding (arXiv 2104.09864) of already computed angles."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the pairs of x [T, H, P] by the angles [T, P / 2]; in fp32, rounded once.

    Pairs are neighbours where interleaved, else halves; the result holds first members, then second ones.
    Queries and keys come out in the same order, which is all that their products need.
    """
    wide = x.float()
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
