"""Weights as checkpoints store them: plain, int4 in groups, FP8 in blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from outrider.model.quantization import FP8_BLOCK, INT4_GROUP


@dataclass(frozen=True, kw_only=True)
class Int4Weight:
    """Symmetric 4-bit values of [N, K], a scale for each INT4_GROUP inputs (compressed-tensors' packing).

    An int32 holds eight neighbours of a row, the first in its lowest bits; a stored value is the weight's
    plus 8.
    """

    packed: Tensor  # [N, K / 8] int32
    scales: Tensor  # [N, K / INT4_GROUP] bf16
    dtype: torch.dtype  # of the inputs

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.packed.shape[0], 8 * self.packed.shape[1]

    def to_plain(self) -> Tensor:
        """The weight itself [N, K]: each product of value and scale in fp32, rounded once."""
        shifts = torch.arange(0, 32, 4, device=self.packed.device, dtype=torch.int32)
        values = (self.packed[..., None] >> shifts & 15).flatten(1) - 8  # [N, K]
        return (
            (values.unflatten(1, (-1, INT4_GROUP)) * self.scales.float()[..., None]).flatten(1).to(self.dtype)
        )


@dataclass(frozen=True, kw_only=True)
class Fp8Weight:
    """E4m3 values of [N, K] with an fp32 factor for each block of FP8_BLOCK by FP8_BLOCK."""

    values: Tensor  # [N, K] float8_e4m3fn
    scales: Tensor  # [ceil(N / FP8_BLOCK), ceil(K / FP8_BLOCK)] fp32, multiplied with the values
    dtype: torch.dtype  # of the inputs

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def to_plain(self) -> Tensor:
        """The weight itself [N, K]: each product of value and factor in fp32, rounded once."""
        N, K = self.shape
        wide = self.scales.repeat_interleave(FP8_BLOCK, 0)[:N].repeat_interleave(FP8_BLOCK, 1)[:, :K]
        return (self.values.float() * wide).to(self.dtype)


StoredWeight: TypeAlias = Tensor | Int4Weight | Fp8Weight


def to_plain(weight: StoredWeight) -> Tensor:
    """A weight [N, K] in the type of its inputs."""
    return weight if isinstance(weight, Tensor) else weight.to_plain()


def stack_outputs(weights: Sequence[StoredWeight]) -> StoredWeight:
    """One weight [sum of N, K] of several with the same inputs.

    It is stored as they are if they are alike and, in FP8, each but the last ends with a whole block; else
    it is plain.
    """
    first = weights[0]
    if isinstance(first, Int4Weight) and all(isinstance(weight, Int4Weight) for weight in weights):
        return replace(first, packed=_stack(weights, "packed"), scales=_stack(weights, "scales"))
    whole = all(weight.shape[0] % FP8_BLOCK == 0 for weight in weights[:-1])
    if isinstance(first, Fp8Weight) and all(isinstance(weight, Fp8Weight) for weight in weights) and whole:
        return replace(first, values=_stack(weights, "values"), scales=_stack(weights, "scales"))
    return torch.cat([to_plain(weight) for weight in weights])


def alike(weights: Sequence[StoredWeight]) -> Sequence[StoredWeight]:
    """The weights as they are if all are stored in one form, else all plain."""
    kinds = {type(weight) for weight in weights}
    return weights if len(kinds) == 1 else [to_plain(weight) for weight in weights]


def _stack(weights: Sequence[StoredWeight], part: str) -> Tensor:
    return torch.cat([getattr(weight, part) for weight in weights])
