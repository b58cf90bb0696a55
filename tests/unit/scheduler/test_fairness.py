"""No tenant starves another, and none saves anything up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.fairness import PATIENCE, Tenants
from services.scheduler.sequence import FinishReason, Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup, alone
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule, run, step


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


def test_a_resumed_sequence_is_not_charged_for_tokens_that_the_cache_still_has() -> None:
    make = SequenceMaker()
    schedule = make_schedule(group := ReferenceGroup())
    schedule.add(make([2], tenant="other", max_num_tokens=200))
    schedule.add(broken := make([1] * 6, max_num_tokens=30))
    while broken.num_tokens < 13:
        step(schedule, group)
    schedule.end(broken, FinishReason.ABORTED)
    before = schedule.tenants.served("a")
    resumed = make([1] * 6, resumed=tuple(broken.token_ids[6:]), max_num_tokens=30)
    schedule.add(resumed)
    step(schedule, group)
    # The last row of 13 was never computed, and one token came out.
    assert schedule.tenants.served("a") - before == 1 + 1


def test_a_sequence_that_only_says_it_is_resumed_pays_for_its_prompt() -> None:
    make = SequenceMaker()
    schedule = make_schedule(group := ReferenceGroup())
    schedule.add(forged := make([1] * 20, resumed=(1,), max_num_tokens=30))
    schedule.add(make([2], tenant="other"))
    while forged.num_tokens == 21:
        step(schedule, group)
    assert schedule.tenants.served("a") == 21 + 1


CHUNK = 8


@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(200, 2), (30, 8)])
def test_a_tenant_whose_streams_hold_all_places_or_blocks_makes_way(
    num_blocks: int, max_num_seqs: int
) -> None:
    make = SequenceMaker()
    group = ReferenceGroup(num_blocks=num_blocks, max_num_batched_tokens=32)
    schedule = make_schedule(group, max_num_seqs=max_num_seqs, prefill_chunk=CHUNK)
    greedy = [make([number] * 30, tenant="greedy", max_num_tokens=110) for number in range(3)]
    for sequence in greedy:
        schedule.add(sequence)
    for _ in range(10):
        step(schedule, group)
    schedule.add(modest := make([9] * 40, tenant="modest", max_num_tokens=60))
    while modest.num_tokens == 40:
        step(schedule, group)
    assert all(sequence.end is None for sequence in greedy)
    run(schedule, group)
    for sequence in (*greedy, modest):
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        limit = sequence.max_num_tokens
        assert sequence.token_ids == alone(prompt, 0, num_tokens=limit, stop=frozenset(), vocab_size=11)


def test_sequences_make_way_until_the_tenants_run_as_many_and_then_no_more() -> None:
    make = SequenceMaker()
    group = ReferenceGroup(num_blocks=400, max_num_batched_tokens=32)
    schedule = make_schedule(group, max_num_seqs=8, prefill_chunk=CHUNK)
    for tenant in "ab":
        for _ in range(10):
            schedule.add(make([1] * 4, tenant=tenant, max_num_tokens=150))
        for _ in range(3):
            step(schedule, group)
    for _ in range(60):
        step(schedule, group)
    assert schedule.counters.num_preemptions == 4
    assert sorted(sequence.tenant for sequence in schedule.running.values()) == [*"aaaabbbb"]


@given(
    num_outputs=st.lists(st.integers(40, 150), min_size=2, max_size=3),
    num_places=st.integers(1, 3),
    num_blocks=st.integers(45, 130),
)
@settings(max_examples=8, deadline=None)
def test_however_long_the_outputs_a_tenant_falls_behind_by_few_chunks_and_two_sequences_of_each_other_tenant(
    num_outputs: list[int], num_places: int, num_blocks: int
) -> None:
    make = SequenceMaker()
    group = ReferenceGroup(num_blocks=num_blocks, max_num_batched_tokens=12)
    schedule = make_schedule(group, max_num_seqs=num_places, prefill_chunk=CHUNK)
    tenants = dict(zip("abc", num_outputs, strict=False))
    for number in range(300):
        # The first tenant has all places before the others come.
        for tenant, num_output in tenants.items() if number > 5 else [("a", num_outputs[0])]:
            while sum(waiting.tenant == tenant for waiting in schedule.tenants.waiting()) < 2:
                schedule.add(make([1] * 6, tenant=tenant, max_num_tokens=6 + num_output))
        step(schedule, group)
        if number > 5:
            served = [schedule.tenants.served(tenant) for tenant in tenants]
            # What makes way for a sequence is as long as that at most, and one more; a step has 12 rows.
            num_tokens = (len(tenants) - 1) * 2 * (6 + max(num_outputs))
            assert max(served) - min(served) <= PATIENCE * CHUNK + num_tokens + 2 * 12


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
