"""Which pair is chosen."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.choice import Prospect, best

IDLE = Prospect(
    num_own_tokens=1000,
    num_waiting_tokens=0,
    num_requests=0,
    step_seconds=0.01,
    rows_per_second=1000.0,
    num_sent=0,
)


def test_where_the_prefix_is_cached_is_chosen() -> None:
    assert best([IDLE, replace(IDLE, num_own_tokens=100)]) == 1


def test_where_less_waits_is_chosen() -> None:
    assert best([replace(IDLE, num_waiting_tokens=500), IDLE]) == 1


def test_equal_pairs_take_turns() -> None:
    sent = [0, 0, 0]
    for _ in range(9):
        sent[best([replace(IDLE, num_sent=num) for num in sent])] += 1
    assert sent == [3, 3, 3]


def test_a_hot_prefix_overloads_no_pair() -> None:
    running = [0, 0]
    for _ in range(200):
        hot = replace(IDLE, num_own_tokens=10, num_requests=running[0])
        running[best([hot, replace(IDLE, num_requests=running[1])])] += 1
    # To compute the prefix takes 990 ms, as long as 99 steps.
    assert running[0] - running[1] <= 100
    assert running[1] >= 50


def test_a_pair_that_was_never_measured_is_tried() -> None:
    assert best([replace(IDLE, num_sent=1), replace(IDLE, step_seconds=0.0, rows_per_second=0.0)]) == 1


def test_nothing_measured_at_all_is_decided_by_prefix_and_number() -> None:
    new = replace(IDLE, step_seconds=0.0, rows_per_second=0.0)
    assert best([new, replace(new, num_own_tokens=100)]) == 1
    assert best([replace(new, num_requests=3), new]) == 1


@given(
    st.lists(
        st.builds(
            Prospect,
            num_own_tokens=st.integers(1, 10**6),
            num_waiting_tokens=st.integers(0, 10**6),
            num_requests=st.integers(0, 1000),
            step_seconds=st.floats(0, 1),
            rows_per_second=st.floats(0, 1e5),
            num_sent=st.integers(0, 1000),
        ),
        min_size=1,
    ),
    st.data(),
)
def test_more_to_do_makes_no_pair_the_choice(prospects: list[Prospect], data: st.DataObject) -> None:
    chosen = best(prospects)
    other = data.draw(st.sampled_from(range(len(prospects))))
    if other != chosen:
        worse = replace(prospects[other], num_requests=prospects[other].num_requests + 1)
        assert best([*prospects[:other], worse, *prospects[other + 1 :]]) != other
