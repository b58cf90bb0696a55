"""No tenant starves another, and none saves anything up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.fairness import Tenants
from services.scheduler.sequence import FinishReason, Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule, step


def enter(tenants: Tenants, sequence: Sequence) -> Sequence:
    tenants.enter(sequence)
    tenants.add(sequence)
    tenants.check()
    return sequence


def test_the_tenant_served_least_goes_first() -> None:
    make, tenants = SequenceMaker(), Tenants()
    first = enter(tenants, make([1], tenant="a"))
    second = enter(tenants, make([1], tenant="b"))
    assert tenants.first() is first
    tenants.charge(first, 1)
    assert tenants.first() is second


def test_a_tenant_of_double_weight_is_served_twice_as_much_before_its_turn_ends() -> None:
    make, tenants = SequenceMaker(), Tenants()
    heavy = enter(tenants, make([1], tenant="heavy", tenant_weight=2.0))
    light = enter(tenants, make([1], tenant="light"))
    tenants.charge(light, 10)
    tenants.charge(heavy, 19)
    assert tenants.first() is heavy
    tenants.charge(heavy, 2)
    assert tenants.first() is light


def test_inside_a_tenant_priority_goes_before_arrival() -> None:
    make, tenants = SequenceMaker(), Tenants()
    sequences = [enter(tenants, make([1], priority=priority)) for priority in (0, 1, 0, 1)]
    order = []
    while (sequence := tenants.first()) is not None:
        tenants.remove(sequence)
        tenants.check()
        order.append(sequences.index(sequence))
    assert order == [1, 3, 0, 2]


def test_a_tenant_that_comes_back_starts_at_the_minimum_of_the_active_ones() -> None:
    make, tenants = SequenceMaker(), Tenants()
    busy = enter(tenants, make([1], tenant="busy"))
    tenants.charge(busy, 100)
    enter(tenants, make([1], tenant="back"))
    assert tenants.served("back") == 100


def test_a_tenant_that_was_ahead_is_still_ahead_when_it_comes_back() -> None:
    make, tenants = SequenceMaker(), Tenants()
    enter(tenants, make([1], tenant="other"))
    ahead = enter(tenants, make([1], tenant="ahead"))
    tenants.charge(ahead, 50)
    tenants.remove(ahead)
    tenants.leave(ahead)
    enter(tenants, make([1], tenant="ahead"))
    assert tenants.served("ahead") == 50


def test_idle_tenants_are_forgotten_once_nobody_is_behind_them() -> None:
    make, tenants = SequenceMaker(), Tenants()
    for number in range(100):
        sequence = enter(tenants, make([1], tenant=f"tenant-{number}"))
        tenants.charge(sequence, number)
        tenants.remove(sequence)
        tenants.leave(sequence)
    assert not tenants._tenants


@given(
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    weights=st.lists(st.sampled_from([1.0, 2.0]), min_size=4, max_size=4),
)
@settings(max_examples=8)
def test_tenants_that_always_have_work_are_served_by_their_weights(
    lengths: list[int], weights: list[float]
) -> None:
    make = SequenceMaker()
    group = ReferenceGroup(num_blocks=40, max_num_batched_tokens=12)
    schedule = make_schedule(group, max_num_seqs=2)
    names = [f"tenant-{number}" for number in range(len(lengths))]
    for _ in range(100):
        for name, length, weight in zip(names, lengths, weights, strict=False):
            while sum(waiting.tenant == name for waiting in schedule.tenants.waiting()) < 2:
                schedule.add(make([1] * length, tenant=name, tenant_weight=weight, max_num_tokens=length + 6))
        step(schedule, group)
    served = [schedule.tenants.served(name) for name in names]
    # As in the paper, a tenant is ahead by no more than what it runs at once costs: prompts and outputs.
    cost = max(length + 2 * 6 for length in lengths)
    assert max(served) - min(served) <= 2 * cost


def test_a_resumed_sequence_is_not_charged_for_its_old_tokens() -> None:
    make = SequenceMaker()
    schedule = make_schedule(group := ReferenceGroup())
    schedule.add(resumed := make([1] * 6, resumed=(1, 2, 3), max_num_tokens=30))
    schedule.add(make([2], tenant="other"))
    while resumed.num_tokens == 9:
        step(schedule, group)
    assert schedule.tenants.served("a") == 1


def test_what_is_computed_again_is_not_charged_again() -> None:
    make = SequenceMaker()
    schedule = make_schedule(group := ReferenceGroup())
    schedule.add(sequence := make([1] * 6, max_num_tokens=30))
    schedule.add(make([2], tenant="other"))
    step(schedule, group)
    served = schedule.tenants.served("a")
    assert served == 6 + 1
    group.void()
    schedule.void(schedule.facts)
    step(schedule, group)
    # The last token's row is new, and so is the one output token.
    assert schedule.tenants.served("a") == served + 2
    schedule.end(sequence, FinishReason.ABORTED)
