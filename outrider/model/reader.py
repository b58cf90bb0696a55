"""Reads tensors by name in the type and on the device of the model, and reports progress."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.kernels.weights import Fp8Weight, Int4Weight, StoredWeight
from outrider.model.checkpoint import Checkpoint
from outrider.model.errors import CheckpointError
from outrider.model.quantization import Storage

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
        # Always a copy: a view of the mapped file would change, or crash, when the file is written again.
        return self._mapped(name).to(self.device, dtype or self.dtype, copy=True)

    def weight(self, linear: str) -> StoredWeight:
        """The weight of a linear [N, K], as it is stored, for inputs of the model's type."""
        storage = self.checkpoint.storage(self.prefix + linear)
        part = self.within(f"{linear}.")
        if storage == Storage.INT4:
            weight = Int4Weight(
                packed=part("weight_packed", torch.int32),
                scales=part("weight_scale", torch.bfloat16),
                dtype=self.dtype,
            )
            part._check_shape(weight.shape)
            return weight
        if storage == Storage.FP8:
            return Fp8Weight(
                values=part("weight", torch.float8_e4m3fn),
                scales=part("weight_scale_inv", torch.float32),
                dtype=self.dtype,
            )
        return part("weight")

    def _check_shape(self, shape: tuple[int, int]) -> None:
        """Raise CheckpointError unless the shape that stands beside a packed weight is its own."""
        stated = self._mapped("weight_shape").tolist()
        if stated != list(shape):
            name = f"{self.checkpoint.directory}: {self.prefix}weight_shape"
            raise CheckpointError(f"{name} states {stated}, and weight_packed holds {list(shape)}")

    def _mapped(self, name: str) -> Tensor:
        name = self.prefix + name
        tensor = self.checkpoint.read(name)
        self.meter.add(self.checkpoint.tensors[name].num_bytes)
        return tensor
