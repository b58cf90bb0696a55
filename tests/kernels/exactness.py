"""What the tests of every backend's kernels share: what they draw, and how exact a result must be."""

import torch
from torch import Tensor

from outrider.kernels.interface import GateRule


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 11) -> Tensor:
    """Normal numbers, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gate_rule(**changes) -> GateRule:
    """Two experts of one group, weighed by their parts of the sum."""
    values = {
        "num_experts_per_token": 2,
        "num_groups": 1,
        "num_kept_groups": 1,
        "normalize_weights": True,
        "scaling": 1.0,
    }
    return GateRule(**(values | changes))


def assert_close_as_plain(result: Tensor, plain: Tensor, exact: Tensor) -> None:
    """The error is at most twice the plain formula's, but for half a unit in the last place of the result."""
    assert result.dtype == plain.dtype
    assert result.shape == exact.shape
    ulp = exact.abs() * torch.finfo(result.dtype).eps
    error = (result.double() - exact).abs() - ulp / 2
    assert error.max() <= 2 * (plain.double() - exact).abs().max()


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Softmax attention of one sequence: [T, H, K] over [N, H, K] and [N, H, W]."""
    scores = torch.einsum("thk,nhk->htn", query, keys) * scale
    scores = scores.masked_fill(torch.arange(len(keys)) > positions[:, None], -torch.inf)
    return torch.einsum("htn,nhw->thw", scores.softmax(-1), values)
