"""A launch of a kernel as a value: what runs on a device is what the report compiles ahead of time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

Argument: TypeAlias = Tensor | int | float

DoesNotFit = OutOfResources
"""What a launch raises whose kernel needs more shared memory or threads than the GPU has."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel and everything its launch is given.

    A kernel's module makes launches from tensors, of which it looks at shapes, types and strides alone: made
    from meta tensors they can be compiled for any shape, and need no memory.
    """

    kernel: Any  # of triton.jit
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]  # by parameter
    constants: Mapping[str, Any] = field(default_factory=dict)  # its constexpr parameters
    num_warps: int = 4
    num_warps_on: Mapping[int, int] = field(default_factory=dict)  # by architecture, where it differs
    num_stages: int = 2

    def warps(self, arch: int) -> int:
        """How many warps a program has on sm_`arch`."""
        return self.num_warps_on.get(arch, self.num_warps)

    def run(self) -> None:
        """Launches the kernel on the current stream; a grid without programs does nothing."""
        if 0 not in self.grid:
            self.kernel[self.grid](
                **self.arguments,
                **self.constants,
                num_warps=self.warps(current_arch()),
                num_stages=self.num_stages,
            )


@cache
def current_arch() -> int:
    """90 on Hopper, 100 on Blackwell, 0 without a GPU."""
    return 10 * torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
