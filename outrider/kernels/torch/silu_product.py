"""The gated activation of every feed-forward block."""

import torch
from torch import Tensor


def silu_product(gate_up: Tensor) -> Tensor:
    """silu(left half) * right half: [T, 2 F] -> [T, F], in fp32, rounded once.

    torch's own silu and sigmoid round differently in vector bodies and scalar tails, so a value's bits depend
    on where it lies; exp does not (tried at all offsets), and IEEE 754 fixes division and addition.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)
