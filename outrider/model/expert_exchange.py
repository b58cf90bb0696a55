"""Routed experts over several ranks: each computes its own (token, choice) pairs, and all get every output.

A rank's message has the outputs of pairs, then its part of the shared experts' block:

    | outputs of pairs ... | rows of the shared block [T] |        gathered: [R, pairs + T, D]

Outputs are put back unsummed to [T, A, D]: no placement and no number of ranks shows in how they are added.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.kernels.interface import Choice, Kernels, Packed
from outrider.model.expert_slots import SlotTable
from outrider.model.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class Stowage:
    """Which pairs a rank sends, and where each pair is in what its owner sends."""

    sent: Tensor | None  # numbers of this rank's pairs; None: those of all ranks
    size: int  # pairs in each rank's message, of which the last may be nothing
    places: Tensor  # [T * A]


class ExpertExchange:
    """The experts of one layer: x [T, D] -> [T, A, D], and of the shared block's parts [T, D] the sum."""

    def __init__(
        self, kernels: Kernels, packed: Packed, table: SlotTable, num_own_slots: int, ranks: Ranks
    ) -> None:
        self._kernels = kernels
        self._packed = packed
        self._table = table
        self._num_own_slots = num_own_slots
        self._ranks = ranks

    def __call__(self, x: Tensor, choice: Choice, shared: Tensor | None) -> tuple[Tensor, Tensor | None]:
        kernels, num_own, ranks = self._kernels, self._num_own_slots, self._ranks
        slots = self._table.of(choice.experts)
        own = slots - ranks.rank * num_own
        own = own.where((own >= 0) & (own < num_own), num_own)
        outputs = kernels.experts(x, replace(choice, experts=own), self._packed)
        # Padding has no owner; whatever is taken for its output, nobody reads it.
        owners = (slots.flatten() // num_own).clamp_(max=ranks.num_ranks - 1)
        # Where a graph is captured shapes cannot depend on data: all pairs travel.
        stowage = stow_all(owners) if kernels.CAPTURABLE else stow_own(owners, ranks)
        gathered = ranks.all_gather(message(outputs.flatten(0, 1), stowage, shared))  # [R, pairs + T, D]
        rows = owners * gathered.shape[1] + stowage.places
        together = gathered.flatten(0, 1).index_select(0, rows).view_as(outputs)
        if shared is not None:
            shared = kernels.add_parts(gathered[:, stowage.size :])
        return together, shared


def stow_all(owners: Tensor) -> Stowage:
    """Every rank sends every pair, whoever has computed it: owners [T * A]."""
    return Stowage(sent=None, size=len(owners), places=torch.arange(len(owners), device=owners.device))


def stow_own(owners: Tensor, ranks: Ranks) -> Stowage:
    """Each rank sends its own pairs, in order, and room up to as many as any rank has: owners [T * A]."""
    order = owners.argsort(stable=True)
    counts = torch.bincount(owners, minlength=ranks.num_ranks)
    firsts = counts.cumsum(0) - counts
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device) - firsts.repeat_interleave(counts)
    sizes = counts.tolist()
    first = sum(sizes[: ranks.rank])
    return Stowage(sent=order[first : first + sizes[ranks.rank]], size=max(sizes), places=places)


def message(outputs: Tensor, stowage: Stowage, shared: Tensor | None) -> Tensor:
    """What a rank sends of outputs [T * A, D] and of its part [T, D] of the shared block."""
    if stowage.sent is None:
        return outputs if shared is None else torch.cat([outputs, shared])
    num_shared = 0 if shared is None else len(shared)
    sent = outputs.new_empty(stowage.size + num_shared, outputs.shape[1])
    torch.index_select(outputs, 0, stowage.sent, out=sent[: len(stowage.sent)])
    if shared is not None:
        sent[stowage.size :] = shared
    return sent
