"""Muon for matrices (https://kellerjordan.github.io/posts/muon/), AdamW for embedding, head, gate and norms.

Muon's step is the momentum with its singular values pushed to about one, by five rounds of
X <- aX + (bA + cA^2)X where A = XX^T.
"""

from __future__ import annotations

from concurrent.futures import Executor

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)
MUON_RATE, ADAM_RATE = 0.02, 0.003
MOMENTUM, WEIGHT_DECAY = 0.95, 0.01
MAX_NORM = 1.0


def orthogonalize(matrices: Tensor, num_rounds: int = 5) -> Tensor:
    """Pushes the singular values of one matrix, or of a stack of them, to about one."""
    a, b, c = QUINTIC
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT.contiguous() if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(num_rounds):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if is_tall else x


class Optimizer:
    """Both optimizers; the matrices, those within layers, are dealt out to the threads of a pool."""

    def __init__(self, network: nn.Module, pool: Executor) -> None:
        self.pool, self.matrices, others = pool, [], []
        for name, param in network.named_parameters():
            is_matrix = (
                name.startswith(("layers.", "midlayer.", "fc."))
                and param.ndim >= 2
                and not name.endswith(".gate")
            )
            (self.matrices if is_matrix else others).append(param)
        self.adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.momentum = {param: torch.zeros_like(param) for param in self.matrices}
        self.params = [*self.matrices, *others]

    def step(self, rate: float) -> None:
        """Steps every parameter by its gradient; `rate` is the fraction of the full learning rate."""
        nn.utils.clip_grad_norm_(self.params, MAX_NORM)
        self.adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self.adam.step()
        list(self.pool.map(lambda param: self.step_matrix(param, MUON_RATE * rate), self.matrices))

    @torch.no_grad()
    def step_matrix(self, param: Tensor, rate: float) -> None:
        """Muon's step with Nesterov momentum, scaled up for tall matrices."""
        assert param.grad is not None
        momentum = self.momentum[param].lerp_(param.grad, 1 - MOMENTUM)
        update = orthogonalize(param.grad.lerp(momentum, MOMENTUM))
        scale = max(1.0, param.shape[-2] / param.shape[-1]) ** 0.5
        param.mul_(1 - rate * WEIGHT_DECAY).add_(update, alpha=-rate * scale)
