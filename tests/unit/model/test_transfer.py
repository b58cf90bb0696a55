"""Nested values keep their shape, types and bits when their tensors move together."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from outrider.model.transfer import StaticCopy, pack, tensors_of, unpack, with_tensors

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Inner:
    flags: Tensor
    number: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    ids: Tensor
    parts: list[Inner]
    pair: tuple[Tensor, None]


def outer(start: int = 0) -> Outer:
    inner = Inner(flags=torch.tensor([True, False, True]), number=7)
    return Outer(
        ids=torch.arange(start, start + 5),
        parts=[inner, Inner(flags=torch.zeros(0, dtype=torch.bool), number=8)],
        pair=(torch.randn(2, 3, generator=torch.Generator().manual_seed(start)).to(torch.float16), None),
    )


def same(left: Outer, right: Outer) -> bool:
    pairs = zip(tensors_of(left), tensors_of(right), strict=True)
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


def test_tensors_are_found_wherever_they_lie_and_put_back_in_order():
    value = outer()
    moved = with_tensors(value, [tensor.clone() for tensor in tensors_of(value)])
    assert same(moved, value)
    assert len(tensors_of(value)) == 4
    assert [part.number for part in moved.parts] == [7, 8]
    assert moved.ids is not value.ids


def test_a_buffer_holds_every_tensor_at_an_aligned_place():
    tensors = tensors_of(outer())
    parts = unpack(pack(tensors), tensors)
    assert all(torch.equal(part, tensor) for part, tensor in zip(parts, tensors, strict=True))
    assert {part.untyped_storage().data_ptr() for part in parts} == {parts[0].untyped_storage().data_ptr()}
    assert all(part.storage_offset() * part.itemsize % 16 == 0 for part in parts)


def test_a_static_copy_stays_in_place_while_its_content_changes():
    copy = StaticCopy(outer(), CPU)
    before = [tensor.data_ptr() for tensor in tensors_of(copy.value)]
    assert same(copy.value, outer())
    copy.fill(outer(3))
    assert same(copy.value, outer(3))
    assert [tensor.data_ptr() for tensor in tensors_of(copy.value)] == before


def test_a_static_copy_takes_no_other_shapes():
    copy = StaticCopy(torch.zeros(4), CPU)
    with pytest.raises(AssertionError):
        copy.fill(torch.zeros(5))
