"""The two kinds of feed-forward layer: dense, and a mixture of experts."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from outrider.kernels.interface import Kernels
from outrider.kernels.weights import StoredWeight, alike, stack_outputs
from outrider.model.config import ModelConfig, MoeConfig
from outrider.model.reader import Reader


@dataclass(frozen=True, kw_only=True)
class FeedForwardResult:
    """A layer's output, and the experts that it woke (None: it has none)."""

    output: Tensor  # [T, D]
    experts: Tensor | None  # [T, A]


class FeedForward(Protocol):
    """One feed-forward layer: rows that are padding [T] wake no experts."""

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> FeedForwardResult: ...


class DenseFeedForward:
    """down(silu(gate(x)) * up(x)), gate and up computed as one product."""

    def __init__(self, reader: Reader, kernels: Kernels) -> None:
        self._kernels = kernels
        self._gate_up = kernels.pack_linear(read_gate_up(reader))
        self._down = kernels.pack_linear(reader.weight("down_proj"))

    def apply(self, x: Tensor) -> Tensor:
        hidden = self._kernels.silu_product(self._kernels.linear(x, self._gate_up))
        return self._kernels.linear(hidden, self._down)

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> FeedForwardResult:
        return FeedForwardResult(output=self.apply(x), experts=None)


class MoeFeedForward:
    """Routed experts chosen by a gate, plus the shared experts, which are one dense block."""

    def __init__(self, config: MoeConfig, reader: Reader, kernels: Kernels) -> None:
        self._kernels = kernels
        self._rule = config.gate_rule
        self._num_experts = config.num_experts
        # The gate is fp32 in every type: a near tie decided by rounding would wake another expert.
        self._gate = kernels.pack_linear(reader("gate.weight", torch.float32))
        self._bias = reader("gate.e_score_correction_bias", torch.float32)
        scopes = [reader.within(f"experts.{e}.") for e in range(config.num_experts)]
        weights = alike([*map(read_gate_up, scopes), *(scope.weight("down_proj") for scope in scopes)])
        E = config.num_experts
        self._experts = kernels.pack_experts(weights[:E], weights[E:])
        shared = reader.within("shared_experts.")
        self._shared = DenseFeedForward(shared, kernels) if config.num_shared_experts else None

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> FeedForwardResult:
        choice = self._kernels.gate(self._kernels.linear(x.float(), self._gate), self._bias, self._rule)
        if padding is not None:
            no_expert = self._num_experts
            choice = replace(choice, experts=choice.experts.masked_fill(padding[:, None], no_expert))
        outputs = self._kernels.experts(x, choice, self._experts)
        shared = self._shared.apply(x) if self._shared else None
        return FeedForwardResult(
            output=self._kernels.combine(outputs, choice, shared), experts=choice.experts
        )


def read_gate_up(reader: Reader) -> StoredWeight:
    return stack_outputs([reader.weight("gate_proj"), reader.weight("up_proj")])


def load_feed_forward(model: ModelConfig, layer: int, reader: Reader, kernels: Kernels) -> FeedForward:
    """The kind of feed-forward that the config names for this layer."""
    if model.moe and model.is_moe(layer):
        return MoeFeedForward(model.moe, reader, kernels)
    return DenseFeedForward(reader, kernels)
