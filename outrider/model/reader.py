"""Reads a rank's parts of tensors in the type and on the device of the model, and reports progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock

import torch
from torch import Tensor

from outrider.kernels.weights import Fp8Weight, Int4Weight, StoredWeight
from outrider.model.checkpoint import Checkpoint
from outrider.model.errors import CheckpointError
from outrider.model.quantization import Storage
from outrider.model.shard import Part

Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in total."""


@dataclass(slots=True)
class Meter:
    """How much of a checkpoint has been read, by any number of threads."""

    total: int
    report: Progress | None
    done: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, num_bytes: int) -> None:
        with self._lock:
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
    parts: Mapping[str, Part] = field(default_factory=dict)  # what is not named is read whole
    prefix: str = field(default="")

    def within(self, prefix: str) -> "Reader":
        return replace(self, prefix=self.prefix + prefix)

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        # Always a copy: a view of the mapped file would change, or crash, when the file is written again.
        return self._mapped(name).to(self.device, dtype or self.dtype, copy=True)

    def weight(self, linear: str) -> StoredWeight:
        """The weight of a linear [N, K], as it is stored, for inputs of the model's type."""
        storage = self.storage(linear)
        part = self.within(f"{linear}.")
        if storage == Storage.INT4:
            weight = Int4Weight(
                packed=part("weight_packed", torch.int32),
                scales=part("weight_scale", torch.bfloat16),
                dtype=self.dtype,
            )
            part._check_shape()
            return weight
        if storage == Storage.FP8:
            return Fp8Weight(
                values=part("weight", torch.float8_e4m3fn),
                scales=part("weight_scale_inv", torch.float32),
                dtype=self.dtype,
            )
        return part("weight")

    def storage(self, linear: str) -> Storage | None:
        """How the weight of a linear is stored; None if it is not there."""
        return self.checkpoint.storage(self.prefix + linear)

    def _check_shape(self) -> None:
        """Raise CheckpointError unless the shape that stands beside a packed weight is its own."""
        N, num_packed = self.checkpoint.tensors[f"{self.prefix}weight_packed"].shape
        stated, held = self._mapped("weight_shape").tolist(), [N, 8 * num_packed]
        if stated != held:
            name = f"{self.checkpoint.directory}: {self.prefix}weight_shape"
            raise CheckpointError(f"{name} states {stated}, and weight_packed holds {held}")

    def _mapped(self, name: str) -> Tensor:
        name = self.prefix + name
        tensor = self.checkpoint.read(name)
        if name in self.parts:
            tensor = self.parts[name].of(tensor)
        self.meter.add(tensor.nbytes)
        return tensor
