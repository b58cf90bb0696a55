"""Improves a placement a few slots at a time: which to fill anew, for loads that were measured.

A layer is done when its busiest rank is, so what counts is the largest load of a rank. Two changes lower it:

    swap        a slot of the busiest rank and one of another change their experts: two slots to fill
    replicate   a further copy of one of its experts, in place of a copy of one that has several: one slot, or
                two where the place is wanted on another rank and an expert from there moves to where it was

The best change of all layers, by how much less the layer is waited for per slot to fill, is taken until none
is worth its reading or the ranks may read no more. The wait is the norm of the ranks' loads to a high power:
the largest of them, except that it falls also when one of two ranks that are equally busy is relieved.

No layer's largest load ever rises, so a change is undone only when the loads have changed, by twice the gain
that a change must have.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model.placement.balance import Loads, num_copies, slot_loads
from outrider.model.placement.placement import Move, Placement

POWER = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a change must bring and may take."""

    max_num_moves_per_rank: int  # slots of one rank, over all layers
    # By how much of a layer's mean load its wait must fall.
    min_gain: float = 0.005
    # By how many standard deviations of what chance does to two equal ranks their loads must differ: there
    # are thousands of pairs of ranks and layers, and tokens of one sequence are alike.
    min_deviations: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """Slots to fill together, and how much less the layer is waited for then, in means."""

    slots: dict[int, int]  # the expert of each
    gain: float


def plan_moves(placement: Placement, loads: Loads, limits: Limits) -> list[Move]:
    """The slots to fill anew now; none where nothing is worth it."""
    room = np.full(placement.num_ranks, limits.max_num_moves_per_rank)
    layers = [
        _Layer(row.copy(), of_layer, placement.num_ranks)
        for row, of_layer in zip(placement.experts, loads, strict=True)
    ]
    changes = [layer.best_change(room > 0, limits) for layer in layers]
    while True:
        number = max(range(len(layers)), key=lambda number: _worth(changes[number]))
        layer, change = layers[number], changes[number]
        if change is None:
            break
        ranks = [layer.rank_of(slot) for slot in change.slots]
        # Another layer's change may have taken the room meanwhile.
        if (room[ranks] > 0).all():
            room[ranks] -= 1
            layer.apply(change)
        changes[number] = layer.best_change(room > 0, limits)
    return [
        Move(layer=number, slot=int(slot), expert=int(layer.row[slot]))
        for number, (before, layer) in enumerate(zip(placement.experts, layers, strict=True))
        for slot in np.flatnonzero(before != layer.row)
    ]


def _worth(change: Change | None) -> float:
    return change.gain / len(change.slots) if change else 0.0


class _Layer:
    """A layer as the changes planned so far leave it; loads in means of a rank."""

    def __init__(self, row: NDArray[np.int64], loads: NDArray[np.float64], num_ranks: int) -> None:
        self.row = row  # [P]
        # So many tokens are one mean: what chance does to loads is in tokens.
        self._mean = max(loads.sum() / num_ranks, 1.0)
        self._loads = loads / self._mean
        self._num_ranks = num_ranks
        self._num_slots_per_rank = len(row) // num_ranks
        self._ranks = np.arange(len(row)) // self._num_slots_per_rank  # [P]

    def rank_of(self, slot: int) -> int:
        """Returns which rank has a slot."""
        return slot // self._num_slots_per_rank

    def apply(self, change: Change) -> None:
        """Fills slots."""
        for slot, expert in change.slots.items():
            self.row[slot] = expert

    def best_change(self, has_room: NDArray[np.bool_], limits: Limits) -> Change | None:
        """Returns the best change that is worth it, in slots of ranks that have room."""
        shares = slot_loads(self.row, self._loads)
        on_ranks = shares.reshape(self._num_ranks, -1).sum(1)
        busiest = int(np.argmax(on_ranks))
        noise = limits.min_deviations * np.sqrt((on_ranks[busiest] + on_ranks) / self._mean)
        takes = has_room & (on_ranks[busiest] - on_ranks > noise)
        if not takes.any():
            return None
        holds = np.zeros((len(self._loads), self._num_ranks))  # [E, R]
        np.add.at(holds, (self.row, self._ranks), 1)
        state = _State(
            busiest=busiest, shares=shares, on_ranks=on_ranks, holds=holds, takes=takes, has_room=has_room
        )
        found = [*self._swaps(state), *self._replications(state)]
        return max((change for change in found if change.gain >= limits.min_gain), key=_worth, default=None)

    def _swaps(self, state: "_State") -> Iterator[Change]:
        """Yields the best change of two experts, one of them on the busiest rank."""
        busiest, ranks = state.busiest, self._ranks
        own = np.flatnonzero(ranks == busiest)  # [S]
        flow = state.shares[own, None] - state.shares  # [S, P]
        after_own, after_other = state.on_ranks[busiest] - flow, state.on_ranks[ranks] + flow
        allowed = state.takes[ranks] & (flow > 0) & (after_other < state.on_ranks[busiest])
        # Two copies on one rank are no better than one.
        allowed &= (state.holds[self.row[own]][:, ranks] == 0) & (state.holds[self.row, busiest] == 0)
        if not state.has_room[busiest] or not allowed.any():
            return
        powers = state.on_ranks**POWER
        rest = powers.sum() - powers[busiest] - powers[ranks]
        waits = (np.maximum(rest, 0) + after_own**POWER + np.abs(after_other) ** POWER) ** (1 / POWER)
        waits[~allowed] = np.inf
        one, other = np.unravel_index(np.argmin(waits), waits.shape)
        slots = {int(own[one]): int(self.row[other]), int(other): int(self.row[own[one]])}
        yield Change(slots=slots, gain=float(state.wait - waits[one, other]))

    def _replications(self, state: "_State") -> Iterator[Change]:
        """Yields the best further copy of an expert of the busiest rank, at one place and at two."""
        copies = num_copies(self.row, len(self._loads))
        spare = np.flatnonzero((copies[self.row] > 1) & state.has_room[self._ranks])
        direct = spare[state.takes[self._ranks[spare]]]
        yield from self._replicate(state, copies, direct, direct)
        yield from self._replicate(state, copies, *self._places_on_lightest(state, spare))

    def _places_on_lightest(
        self, state: "_State", spare: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns for each spare slot elsewhere the slot of the lightest rank whose expert fits in best."""
        lightest = int(np.argmin(np.where(state.takes, state.on_ranks, np.inf)))
        own = np.flatnonzero(self._ranks == lightest)
        spare = spare[self._ranks[spare] != lightest]
        misfit = np.abs(state.shares[own] - state.shares[spare, None])  # [J, S]
        misfit[state.holds[self.row[own]][:, self._ranks[spare]].T > 0] = np.inf
        fits = np.isfinite(misfit).any(1)
        return own[misfit[fits].argmin(1)], spare[fits]

    def _replicate(
        self, state: "_State", copies: NDArray[np.int64], places: NDArray[np.int64], spare: NDArray[np.int64]
    ) -> Iterator[Change]:
        """Yields the best copy in one of `places` [J], whose own expert goes to the spare slot beside it."""
        if not len(spare):
            return
        wanted, gone = np.unique(self.row[self._ranks == state.busiest]), self.row[spare]  # [S], [J]
        one = np.eye(self._num_ranks)
        gets, gives = one[self._ranks[places]], one[self._ranks[spare]]  # [J, R]
        load, held, num = self._loads[wanted, None], state.holds[wanted], copies[wanted, None]
        less, held_less, num_less = self._loads[gone, None], state.holds[gone], copies[gone, None]
        # Of both experts the load as it is goes, and that with a copy more or fewer comes: [S, J, R].
        fixed = state.on_ranks + (gives - gets) * np.where(places == spare, 0, state.shares[places])[:, None]
        fixed = fixed - (held * load / num)[:, None] - held_less * less / num_less
        more = (held[:, None] + gets) * (load / (num + 1))[:, None]
        after = fixed + more + (held_less - gives) * less / (num_less - 1)
        allowed = (held[:, self._ranks[places]] == 0) & (after.max(2) < state.on_ranks.max())
        if not allowed.any():
            return
        waits = np.where(allowed, (np.maximum(after, 0) ** POWER).sum(2) ** (1 / POWER), np.inf)
        best, pair = np.unravel_index(np.argmin(waits), waits.shape)
        slots = {int(spare[pair]): int(self.row[places[pair]]), int(places[pair]): int(wanted[best])}
        yield Change(slots=slots, gain=float(state.wait - waits[best, pair]))


@dataclass(frozen=True, kw_only=True)
class _State:
    """A layer's loads before a change."""

    busiest: int
    shares: NDArray[np.float64]  # [P]
    on_ranks: NDArray[np.float64]  # [R]
    holds: NDArray[np.float64]  # [E, R] copies of an expert on a rank
    has_room: NDArray[np.bool_]  # [R] ranks whose slots may be filled
    takes: NDArray[np.bool_]  # [R] those of them with so much less load that they may get more

    @property
    def wait(self) -> float:
        """What the layer is waited for."""
        return float((self.on_ranks**POWER).sum() ** (1 / POWER))
