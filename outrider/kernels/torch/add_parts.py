"""What the ranks computed of one layer becomes its output."""

from torch import Tensor


def add_parts(parts: Tensor) -> Tensor:
    """Add in rank order in fp32, rounded once: [R, T, D] -> [T, D].

    One addition after another: torch's sum would choose an order by itself.
    """
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts.dtype)
