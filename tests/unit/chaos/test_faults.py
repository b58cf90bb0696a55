"""A seed draws the same faults each time, and nothing is spared."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import Kind, schedule, targets
from tests.chaos.streams import questions

seeds = st.integers(0, 2**32)
sizes = st.fixed_dictionaries({"num_pairs": st.integers(1, 3), "num_ranks": st.integers(1, 3)})


@given(seeds, sizes)
def test_faults_and_questions_are_a_function_of_the_seed(seed: int, size: dict[str, int]) -> None:
    assert schedule(seed, seconds=60, **size) == schedule(seed, seconds=60, **size)
    assert questions(seed, 20) == questions(seed, 20)


@given(seeds, sizes)
def test_longer_runs_begin_as_shorter_ones_do(seed: int, size: dict[str, int]) -> None:
    short = schedule(seed, seconds=40, **size)
    assert schedule(seed, seconds=200, **size)[: len(short)] == short
    assert all(fault.at < 40 for fault in short)


@given(seeds, sizes)
def test_everything_happens_to_every_process(seed: int, size: dict[str, int]) -> None:
    found = {(fault.kind, fault.target) for fault in schedule(seed, seconds=400, **size)}
    for target in targets(**size):
        assert {(kind, target) for kind in Kind if kind is not Kind.RESTART or "." not in target} <= found
