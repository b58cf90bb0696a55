"""Copies nested dataclasses of tensors to a device and back in one transfer, not one for each tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")

# Bytes: kernels are compiled for pointers that are multiples of it.
ALIGNMENT = 16


def to_device(value: Value, device: torch.device) -> Value:
    """The same value with its tensors on the device; the copy may still be under way."""
    if device.type == "cpu":
        return value
    tensors = tensors_of(value)
    return with_tensors(value, unpack(pack(tensors, pinned=True).to(device, non_blocking=True), tensors))


def to_host(value: Value) -> Value:
    """The same value with its tensors on the host, once the device has computed them."""
    tensors = tensors_of(value)
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return value
    buffer = pack(tensors, device=tensors[0].device)
    landed = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True).copy_(buffer, non_blocking=True)
    torch.cuda.current_stream(buffer.device).synchronize()
    return with_tensors(value, unpack(landed, tensors))


class StaticCopy:
    """Device tensors that stay where they are while other values of the same shapes are copied into them."""

    def __init__(self, value: Any, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._shapes = [(tensor.shape, tensor.dtype) for tensor in tensors_of(value)]
        self._buffer = pack(tensors_of(value)).to(device, copy=True)
        self.value = with_tensors(value, unpack(self._buffer, tensors_of(value)))

    def fill(self, value: Any) -> None:
        """Copy a value's tensors over the ones before, in one transfer."""
        tensors = tensors_of(value)
        assert [(tensor.shape, tensor.dtype) for tensor in tensors] == self._shapes
        self._buffer.copy_(pack(tensors, pinned=self._pinned), non_blocking=True)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in fields of dataclasses and items of lists and tuples, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in _parts(value) for tensor in tensors_of(part)]


def with_tensors(value: Value, tensors: Sequence[Tensor]) -> Value:
    """The value with these in place of tensors_of(value)."""
    return _replaced(value, iter(tensors))


def pack(tensors: Sequence[Tensor], *, device: torch.device | None = None, pinned: bool = False) -> Tensor:
    """One buffer [bytes] of tensors on their device or, page-locked if a GPU is to read it, the host."""
    buffer = torch.empty(_offsets(tensors)[-1], dtype=torch.uint8, device=device, pin_memory=pinned)
    for tensor, part in zip(tensors, unpack(buffer, tensors), strict=True):
        part.copy_(tensor)
    return buffer


def unpack(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a buffer that `pack` made of such tensors; they share its memory."""
    starts = _offsets(like)[:-1]
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, like, strict=True)
    ]


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Where each tensor begins in a buffer, and where the buffer ends."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT)
    return offsets


def _parts(value: Any) -> Iterator[Any]:
    if is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))
    elif isinstance(value, list | tuple):
        yield from value


def _replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: _replaced(getattr(value, field.name), tensors) for field in fields(value)}
        return replace(value, **changes)
    if isinstance(value, list | tuple):
        return type(value)(_replaced(part, tensors) for part in value)
    return value
