import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.placement import Loads, Placement, imbalance
from outrider.model.placement.balance import num_copies, rank_loads
from outrider.model.placement.eplb import begin_with, pack, place, replicate

PUBLISHED_LOADS = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)


@st.composite
def starts(draw: st.DrawFn) -> tuple[Placement, Loads]:
    num_ranks, num_slots_per_rank = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    num_slots = num_ranks * num_slots_per_rank
    num_redundant = draw(st.integers(0, num_slots // 2))
    start = Placement.balanced(
        num_layers=draw(st.integers(1, 3)),
        num_experts=num_slots - num_redundant,
        num_redundant=num_redundant,
        num_ranks=num_ranks,
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    loads = rng.zipf(2.0, (len(start.experts), start.num_experts)) * rng.integers(0, 1000)
    return start, loads.astype(np.float64)


def test_the_published_example_comes_out() -> None:
    placed = place(PUBLISHED_LOADS, num_slots=16, num_ranks=8, num_groups=4, num_nodes=2)
    assert placed.tolist() == [
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    ]


def test_experts_of_a_group_stay_on_one_node() -> None:
    placed = place(PUBLISHED_LOADS, num_slots=16, num_ranks=8, num_groups=4, num_nodes=2)
    for layer in placed:
        groups = [set((node // 3).tolist()) for node in layer.reshape(2, -1)]
        assert not groups[0] & groups[1]


@pytest.mark.parametrize("num_nodes", [3, 5])
def test_groups_that_nodes_cannot_share_equally_do_not_count(num_nodes: int) -> None:
    num_ranks = num_nodes * 2
    loads = PUBLISHED_LOADS
    apart = place(loads, num_slots=30, num_ranks=num_ranks, num_groups=4, num_nodes=num_nodes)
    assert np.array_equal(apart, place(loads, num_slots=30, num_ranks=num_ranks))


@given(starts())
def test_every_expert_has_a_slot(drawn: tuple[Placement, Loads]) -> None:
    start, loads = drawn
    placed = begin_with(start, loads)
    assert placed.experts.shape == start.experts.shape
    assert all((num_copies(row, start.num_experts) > 0).all() for row in placed.experts)


@given(starts())
def test_no_layer_waits_longer_than_with_the_balanced_placement(drawn: tuple[Placement, Loads]) -> None:
    start, loads = drawn
    placed = begin_with(start, loads)
    assert (rank_loads(placed, loads).max(1) <= rank_loads(start, loads).max(1)).all()
    assert placed.version == 0
    assert 1 - 1e-9 <= imbalance(placed, loads) <= imbalance(start, loads) + 1e-9


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 20))
def test_a_further_copy_is_of_the_expert_with_most_load_a_copy(loads: list[int], num_more: int) -> None:
    slots = replicate(np.array(loads, dtype=np.float64), len(loads) + num_more)
    copies = num_copies(slots, len(loads))
    shares = np.array(loads) / copies
    # Had the last copy of any expert gone to another, that one would not have been the busier.
    before = np.array(loads)[copies > 1] / (copies[copies > 1] - 1)
    assert all(shares.max() <= share for share in before)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_every_bin_gets_the_same_number(num_bins: int, each: int, data: st.DataObject) -> None:
    loads = data.draw(st.lists(st.integers(0, 100), min_size=num_bins * each, max_size=num_bins * each))
    bins = pack(loads, num_bins)
    assert {len(held) for held in bins} == {each}
    assert sorted(item for held in bins for item in held) == list(range(len(loads)))


def test_equal_loads_are_balanced_as_they_are() -> None:
    start = Placement.balanced(num_layers=2, num_experts=12, num_ranks=4)
    assert np.array_equal(begin_with(start, np.full((2, 12), 7.0)).experts, start.experts)
