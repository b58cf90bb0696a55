"""A launch of a kernel as a value: what runs on a device is what the report compiles ahead of time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

Argument: TypeAlias = Tensor | int | float


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel and everything its launch is given.

    A kernel's module makes launches from tensors, of which it looks at shapes, types and strides alone: made
    from meta tensors they can be compiled for any shape, and need no memory.
    """

    kernel: Any  # of triton.jit
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]  # by parameter, in the kernel's order
    constants: Mapping[str, Any] = field(default_factory=dict)  # its constexpr parameters
    num_warps: int = 4
    num_stages: int = 2

    def run(self) -> None:
        """Launches the kernel on the current stream; a grid without programs does nothing."""
        if 0 not in self.grid:
            self.kernel[self.grid](
                **self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
            )
