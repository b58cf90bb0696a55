"""Reads tensors by name in the type and on the device of the model, and reports progress."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.model.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in total."""


@dataclass(slots=True)
class Meter:
    """How much of a checkpoint has been read."""

    total: int
    report: Progress | None
    done: int = 0

    def add(self, num_bytes: int) -> None:
        self.done += num_bytes
        if self.report:
            self.report(self.done, self.total)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A scope of tensor names; calling it reads one."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    meter: Meter
    prefix: str = field(default="")

    def within(self, prefix: str) -> "Reader":
        return replace(self, prefix=self.prefix + prefix)

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        name = self.prefix + name
        # Always a copy: a view of the mapped file would change, or crash, when the file is written again.
        tensor = self.checkpoint.read(name).to(self.device, dtype or self.dtype, copy=True)
        self.meter.add(self.checkpoint.tensors[name].num_bytes)
        return tensor
