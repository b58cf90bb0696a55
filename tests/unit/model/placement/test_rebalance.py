import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.model.placement import Loads, Move, Placement, imbalance
from outrider.model.placement.balance import num_copies, rank_loads
from outrider.model.placement.eplb import begin_with
from outrider.model.placement.rebalance import Limits, plan_moves

LIMITS = Limits(max_num_moves_per_rank=4)


def skewed(num_layers: int, num_experts: int, *, seed: int = 0, num_tokens: int = 100_000) -> Loads:
    """Loads of which a few experts have the most."""
    rng = np.random.default_rng(seed)
    shares = np.stack([rng.permutation(1 / np.arange(1, num_experts + 1)) for _ in range(num_layers)])
    return num_tokens * shares / shares.sum(1, keepdims=True)


def settled(placement: Placement, loads: Loads, limits: Limits = LIMITS) -> Placement:
    """The placement that no round improves any more."""
    for _ in range(200):
        moves = plan_moves(placement, loads, limits)
        if not moves:
            return placement
        placement = placement.after(moves)
    raise AssertionError("it never settles")


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Placement, Loads, Limits]:
    num_ranks, each = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    num_redundant = draw(st.integers(0, num_ranks * each // 2))
    num_experts = num_ranks * each - num_redundant
    start = Placement.balanced(
        num_layers=3, num_experts=num_experts, num_redundant=num_redundant, num_ranks=num_ranks
    )
    seeds = st.integers(0, 2**32)
    known = skewed(3, num_experts, seed=draw(seeds))
    if draw(st.booleans()):
        start = begin_with(start, known)
    loads = skewed(3, num_experts, seed=draw(seeds), num_tokens=draw(st.integers(0, 1_000_000)))
    return start, loads, Limits(max_num_moves_per_rank=draw(st.integers(0, 5)))


@given(rounds())
@settings(deadline=None)
def test_a_round_loses_no_expert_and_no_layer_waits_longer(
    drawn: tuple[Placement, Loads, Limits],
) -> None:
    placement, loads, limits = drawn
    after = placement.after(plan_moves(placement, loads, limits))
    assert all((num_copies(row, placement.num_experts) > 0).all() for row in after.experts)
    waits = rank_loads(placement, loads).max(1)
    assert (rank_loads(after, loads).max(1) <= waits * (1 + 1e-9)).all()


@given(rounds())
@settings(deadline=None)
def test_no_rank_fills_more_slots_than_it_may(drawn: tuple[Placement, Loads, Limits]) -> None:
    placement, loads, limits = drawn
    moves = plan_moves(placement, loads, limits)
    ranks = [move.slot // placement.num_slots_per_rank for move in moves]
    assert all(ranks.count(rank) <= limits.max_num_moves_per_rank for rank in ranks)
    assert len({(move.layer, move.slot) for move in moves}) == len(moves)


@given(rounds())
@settings(deadline=None)
def test_no_rank_gets_a_second_copy(drawn: tuple[Placement, Loads, Limits]) -> None:
    placement, loads, limits = drawn
    after = placement.after(plan_moves(placement, loads, limits))
    for move in plan_moves(placement, loads, limits):
        rank = move.slot // placement.num_slots_per_rank
        assert (after.on_rank(rank)[move.layer] == move.expert).sum() == 1


@given(rounds())
@settings(deadline=None, max_examples=30)
def test_rounds_come_to_an_end(drawn: tuple[Placement, Loads, Limits]) -> None:
    settled(*drawn)


@pytest.mark.parametrize("num_redundant", [0, 16])
def test_skewed_loads_are_evened_out(num_redundant: int) -> None:
    start = Placement.balanced(num_layers=8, num_experts=64, num_redundant=num_redundant, num_ranks=4)
    loads = skewed(8, 64)
    assert imbalance(start, loads) > 1.3
    assert imbalance(settled(start, loads), loads) < imbalance(begin_with(start, loads), loads) + 0.1


def test_the_busiest_expert_is_replicated() -> None:
    start = Placement.balanced(num_layers=1, num_experts=8, num_redundant=4, num_ranks=4)
    loads = np.full((1, 8), 1000.0)
    loads[0, 5] = 8000
    after = settled(start, loads)
    assert num_copies(after.experts[0], 8)[5] > 1


@pytest.mark.parametrize("num_tokens", [10, 1000, 100_000])
def test_chance_moves_nothing(num_tokens: int) -> None:
    start = Placement.balanced(num_layers=60, num_experts=64, num_ranks=8)
    rng = np.random.default_rng(1)
    for _ in range(10):
        loads = rng.poisson(np.full((60, 64), num_tokens * 8 / 64)).astype(np.float64)
        assert not plan_moves(start, loads, LIMITS)


def test_no_slot_gets_an_expert_back_for_chance() -> None:
    mean = skewed(8, 64)
    placement = Placement.balanced(num_layers=8, num_experts=64, num_redundant=8, num_ranks=4)
    rng = np.random.default_rng(1)
    moves: list[Move] = []
    had: set[tuple[int, int, int]] = set()
    for _ in range(60):
        moves = plan_moves(placement, rng.poisson(mean).astype(np.float64), LIMITS)
        assert not had & {(move.layer, move.slot, move.expert) for move in moves}
        had |= {(move.layer, move.slot, int(placement.experts[move.layer, move.slot])) for move in moves}
        placement = placement.after(moves)
    assert had
    assert not moves


def test_loads_that_nobody_has_yet_move_nothing() -> None:
    start = Placement.balanced(num_layers=2, num_experts=8, num_redundant=4, num_ranks=2)
    assert not plan_moves(start, np.zeros((2, 8)), LIMITS)
