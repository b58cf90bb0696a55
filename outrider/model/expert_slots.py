"""Where the copies of a layer's routed experts are, as its steps look it up."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SlotTable:
    """The slots of each logical expert, on the device.

    It is filled anew in place, between steps: graphs that were captured go on with it.
    """

    def __init__(self, placed: NDArray[np.int64], num_experts: int, device: torch.device) -> None:
        """`placed` [P] is the logical expert in each slot of all ranks; each is in one at least."""
        self._num_experts = num_experts
        self._most = len(placed) - num_experts + 1
        # Padding chooses the expert behind the last, which is in the slot behind the last.
        self._slots = torch.empty((num_experts + 1) * self._most, dtype=torch.int64, device=device)
        self._num_copies = torch.empty(num_experts + 1, dtype=torch.int64, device=device)
        self.fill(placed)

    def fill(self, placed: NDArray[np.int64]) -> None:
        """Take over another placement of as many slots."""
        num_copies = np.append(np.bincount(placed, minlength=self._num_experts), 1)
        order = placed.argsort(kind="stable")
        firsts = num_copies.cumsum() - num_copies
        slots = np.full((self._num_experts + 1, self._most), len(placed))
        slots[placed[order], np.arange(len(placed)) - firsts[placed[order]]] = order
        self._slots.copy_(torch.from_numpy(slots.reshape(-1)))
        self._num_copies.copy_(torch.from_numpy(num_copies))

    def of(self, experts: Tensor) -> Tensor:
        """The slot that serves each choice [T, A]: of copies that of the row's number, on all ranks alike."""
        if self._most == 1:
            return self._slots[experts]
        rows = torch.arange(len(experts), device=experts.device)[:, None]
        return self._slots[experts * self._most + rows % self._num_copies[experts]]
