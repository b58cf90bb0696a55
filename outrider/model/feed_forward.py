"""The two kinds of feed-forward layer: dense, and a mixture of experts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.kernels.interface import Kernels
from outrider.kernels.weights import StoredWeight, alike, stack_outputs, to_plain
from outrider.model.config import ModelConfig, MoeConfig
from outrider.model.expert_exchange import ExpertExchange
from outrider.model.expert_slots import SlotTable
from outrider.model.ranks import ALONE, Ranks, whole_of
from outrider.model.reader import Meter, Reader
from outrider.model.shard import WHOLE, Shard

EXPERT_LINEARS = ("gate_proj", "up_proj", "down_proj")


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

    def __init__(self, reader: Reader, kernels: Kernels, ranks: Ranks = ALONE) -> None:
        self._kernels = kernels
        self._ranks = ranks
        self._gate_up = kernels.pack_linear(read_gate_up(reader))
        self._down = kernels.pack_linear(reader.weight("down_proj"))

    def apply(self, x: Tensor) -> Tensor:
        """The rank's part of the sum."""
        hidden = self._kernels.silu_product(self._kernels.linear(x, self._gate_up))
        return self._kernels.linear(hidden, self._down)

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> FeedForwardResult:
        return FeedForwardResult(output=whole_of(self.apply(x), self._kernels, self._ranks), experts=None)


@dataclass(frozen=True, kw_only=True)
class StoredExpert:
    """An expert's weights as they are read, before they are packed."""

    gate_up: StoredWeight  # [2 F, D]
    down: StoredWeight  # [D, F]


class MoeFeedForward:
    """Routed experts chosen by a gate, plus the shared experts, which are one dense block."""

    def __init__(
        self, config: MoeConfig, reader: Reader, kernels: Kernels, shard: Shard = WHOLE, moe_layer: int = 0
    ) -> None:
        """`moe_layer` is the layer's number among those with routed experts."""
        self._kernels = kernels
        self._rule = config.gate_rule
        self._num_experts = E = config.num_experts
        # The gate is fp32 in every type: a near tie decided by rounding would wake another expert.
        self._gate = kernels.pack_linear(reader("gate.weight", torch.float32))
        self._bias = reader("gate.e_score_correction_bias", torch.float32)
        self._reader = reader.within("experts.")
        self._are_alike = stored_alike(self._reader, E)
        held = [self._read_expert(e, self._reader) for e in shard.own_experts(moe_layer, E)]
        self._first_slot = shard.ranks.rank * len(held)
        self._experts = kernels.pack_experts(
            [expert.gate_up for expert in held],
            [expert.down for expert in held],
            num_slots=len(held) * shard.ranks.num_ranks,
        )
        self._table: SlotTable | None = None
        self._exchange: ExpertExchange | None = None
        if shard.placement is not None:
            self._table = SlotTable(shard.placement.experts[moe_layer], E, reader.device)
            self._exchange = ExpertExchange(kernels, self._experts, self._table, len(held), shard.ranks)
        shared = reader.within("shared_experts.")
        self._shared = DenseFeedForward(shared, kernels) if config.num_shared_experts else None

    def __call__(self, x: Tensor, padding: Tensor | None = None) -> FeedForwardResult:
        choice = self._kernels.gate(self._kernels.linear(x.float(), self._gate), self._bias, self._rule)
        if padding is not None:
            no_expert = self._num_experts
            choice = replace(choice, experts=choice.experts.masked_fill(padding[:, None], no_expert))
        shared = self._shared.apply(x) if self._shared else None
        if self._exchange is not None:
            outputs, shared = self._exchange(x, choice, shared)
        else:
            outputs = self._kernels.experts(x, choice, self._experts)
        return FeedForwardResult(
            output=self._kernels.combine(outputs, choice, shared), experts=choice.experts
        )

    def read_expert(self, expert: int) -> StoredExpert:
        """Read a logical expert, in any thread and while steps run; it shows in no progress."""
        return self._read_expert(expert, replace(self._reader, meter=Meter(total=0, report=None)))

    def place(self, placed: NDArray[np.int64], weights: Mapping[int, StoredExpert]) -> None:
        """Take over a placement [P] between steps, with the weights of the rank's slots that it changes."""
        assert self._table is not None
        for slot, expert in weights.items():
            own = slot - self._first_slot
            self._kernels.replace_expert(self._experts, own, expert.gate_up, expert.down)
        self._table.fill(placed)

    def _read_expert(self, expert: int, reader: Reader) -> StoredExpert:
        scope = reader.within(f"{expert}.")
        weights: Sequence[StoredWeight] = [read_gate_up(scope), scope.weight("down_proj")]
        weights = alike(weights) if self._are_alike else [to_plain(weight) for weight in weights]
        return StoredExpert(gate_up=weights[0], down=weights[1])


def stored_alike(reader: Reader, num_experts: int) -> bool:
    """Whether all experts of a layer are stored in one form, so that they are computed as they are stored.

    Of all ranks' experts: copies of one must be computed alike wherever they are.
    """
    storages = {reader.storage(f"{e}.{linear}") for e in range(num_experts) for linear in EXPERT_LINEARS}
    return len(storages) == 1


def read_gate_up(reader: Reader) -> StoredWeight:
    return stack_outputs([reader.weight("gate_proj"), reader.weight("up_proj")])


def load_feed_forward(
    model: ModelConfig, layer: int, reader: Reader, kernels: Kernels, shard: Shard = WHOLE
) -> FeedForward:
    """The kind of feed-forward that the config names for this layer."""
    if model.moe and model.is_moe(layer):
        return MoeFeedForward(model.moe, reader, kernels, shard, layer - model.num_dense_layers)
    return DenseFeedForward(reader, kernels, shard.ranks)
