"""Repairs the narrow floating types of Triton's interpreter (3.7): bf16, and casts to FP8.

The interpreter keeps bf16 and FP8 values as unsigned integers of their bits, and adds, multiplies, compares
and sums these integers; casts to bf16 cut the last bits off, casts to FP8 lose the carry of rounding. Here
operands are decoded to fp32, computed, and the result is rounded once, to the nearest even. So sums and
maxima along an axis are those of fp32: a GPU that adds bf16 rounds after every addition.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle, _get_np_dtype

NARROW = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
BINARY = (
    "fadd",
    "fsub",
    "fmul",
    "fdiv",
    "frem",
    "precise_divf",
    "minimumf",
    "minnumf",
    "maximumf",
    "maxnumf",
)
COMPARISONS = tuple(f"fcmp{kind}{name}" for kind in "OU" for name in ("LT", "GT", "LE", "GE", "EQ", "NE"))
UNARY = ("floor", "ceil", "exp", "exp2", "log", "log2", "sin", "cos", "erf", "sqrt", "precise_sqrt", "rsqrt")
TERNARY = ("clampf", "fma")
CASTS = ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp")
REDUCTIONS = ((ReduceOps, "sum"), (ReduceOps, "min_max"), (ScanOps, "cumsum"), (ScanOps, "cumprod"))

Operation = Callable[..., Any]


def repair(patch: pytest.MonkeyPatch) -> None:
    """Wraps the interpreter's operations until the patch is undone."""
    for name in BINARY + UNARY + TERNARY:
        _wrap(patch, f"create_{name}", _rounding)
    for name in COMPARISONS:
        _wrap(patch, f"create_{name}", _comparing)
    for name in CASTS:
        _wrap(patch, f"create_{name}", _casting)
    _wrap(patch, "create_dot", _dot)
    patch.setattr(InterpreterBuilder, "get_bf16", _bf16_constant, raising=False)
    for owner, name in REDUCTIONS:
        patch.setattr(owner, name, _reducing(getattr(owner, name)))


def _wrap(patch: pytest.MonkeyPatch, name: str, wrapper: Callable[[Operation], Operation]) -> None:
    patch.setattr(InterpreterBuilder, name, wrapper(getattr(InterpreterBuilder, name)))


def _is_narrow(value: Any) -> bool:
    return isinstance(value, TensorHandle) and value.dtype.scalar in NARROW


def _decoded(value: Any) -> Any:
    """The same values in fp32, if they are narrow; anything else as it is."""
    if not _is_narrow(value):
        return value
    bits = torch.from_numpy(np.ascontiguousarray(value.data).reshape(value.data.shape))
    return TensorHandle(bits.view(NARROW[value.dtype.scalar]).float().numpy(), tl.float32)


def _encoded(data: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """Numbers in a narrow type: to the nearest even, FP8 up to its largest number, as GPUs convert."""
    narrow = NARROW[dtype]
    wide = torch.from_numpy(np.array(data, dtype=np.float32))
    if dtype != tl.bfloat16:
        limit = torch.finfo(narrow).max
        wide = wide.clamp(-limit, limit)
    bits = torch.uint8 if dtype != tl.bfloat16 else torch.uint16
    return TensorHandle(wide.to(narrow).view(bits).numpy(), dtype)


def _rounding(operation: Operation) -> Operation:
    """Computes in fp32 and rounds the result to the type of the last operand."""

    def wrapped(self: InterpreterBuilder, *operands: Any) -> TensorHandle:
        result = operation(self, *map(_decoded, operands))
        tensors = [operand for operand in operands if isinstance(operand, TensorHandle)]
        return _encoded(result.data, tensors[-1].dtype.scalar) if _is_narrow(tensors[-1]) else result

    return wrapped


def _comparing(operation: Operation) -> Operation:
    """Compares in fp32; the answer is a truth value, which casts must not take for a number's bits."""

    def wrapped(self: InterpreterBuilder, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return TensorHandle(operation(self, _decoded(lhs), _decoded(rhs)).data, tl.int1)

    return wrapped


def _casting(operation: Operation) -> Operation:
    """Casts by way of fp32 wherever a narrow type is involved."""

    def wrapped(
        self: InterpreterBuilder, source: TensorHandle, dst_type: tl.dtype, *rounding: Any
    ) -> TensorHandle:
        dtype = dst_type.scalar
        if dtype in NARROW:
            return _encoded(_decoded(source).data, dtype)
        if _is_narrow(source):
            return TensorHandle(_decoded(source).data.astype(_get_np_dtype(dtype)), dtype)
        return operation(self, source, dst_type, *rounding)

    return wrapped


def _dot(operation: Operation) -> Operation:
    """Multiplies in fp32, in which products of narrow numbers are exact."""

    def wrapped(
        self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *options: Any
    ) -> TensorHandle:
        return operation(self, _decoded(a), _decoded(b), d, *options)

    return wrapped


def _bf16_constant(self: InterpreterBuilder, value: float) -> TensorHandle:
    return _encoded(np.array([value]), tl.bfloat16)


def _reducing(operation: Operation) -> Operation:
    """Reduces or scans in fp32 and rounds the results that are numbers."""

    def wrapped(self: Any, tensor: Any, *options: Any, **named: Any) -> Any:
        tensor = tensor[0] if isinstance(tensor, tuple) else tensor
        if not _is_narrow(tensor.handle):
            return operation(self, tensor, *options, **named)
        wide = tl.core.tensor(_decoded(tensor.handle), _with_element(tensor.type, tl.float32))
        found = operation(self, wide, *options, **named)
        if isinstance(found, (list, tuple)):
            return type(found)(_narrowed(item, tensor.dtype) for item in found)
        return _narrowed(found, tensor.dtype)

    return wrapped


def _narrowed(tensor: Any, dtype: tl.dtype) -> Any:
    if tensor.dtype != tl.float32:  # an index
        return tensor
    return tl.core.tensor(_encoded(tensor.handle.data, dtype), _with_element(tensor.type, dtype))


def _with_element(kind: tl.dtype, dtype: tl.dtype) -> tl.dtype:
    return kind.with_element_ty(dtype) if isinstance(kind, tl.block_type) else dtype
