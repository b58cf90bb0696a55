"""Products with one weight for each head, all in one launch."""

from torch import Tensor

from outrider.kernels.triton.linear import product_launch


def pack_head_linear(weight: Tensor) -> Tensor:
    """[H, K, N] -> [H, N, K]: inputs side by side, as in every weight."""
    return weight.transpose(1, 2).contiguous()


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """[T, H, K] x [H, N, K] -> [T, H, N]."""
    y = x.new_empty(x.shape[0], weight.shape[0], weight.shape[1])
    product_launch(x, weight, y).run()
    return y
