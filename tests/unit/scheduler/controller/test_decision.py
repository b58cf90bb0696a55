"""When drafts are verified at all."""

import numpy as np
import pytest
from outrider_native.controller import Probing, decide


def choose(
    probing: Probing, seconds: list[float], doubt: float, *, believed: float = 1.0, chance: float = 0.8
) -> int:
    """Returns how many of positions that are right by one chance are verified."""
    total = np.concatenate([[0], np.cumsum(chance ** np.arange(1, len(seconds)))])
    return decide(
        num_base_tokens=1,
        total=total,
        believed=believed * total,
        seconds=np.array(seconds),
        doubt=np.full(len(seconds), doubt),
        probing=probing,
    )


def poor() -> Probing:
    """Returns an account that nothing can be taken from."""
    return Probing()


def rich(step_seconds: float = 1.0) -> Probing:
    probing = Probing()
    probing.earn(step_seconds)
    return probing


def test_a_gain_beyond_doubt_is_taken() -> None:
    assert choose(poor(), [1.0, 1.1, 1.2, 1.3, 1.4], doubt=0.02) == 4


def test_a_gain_within_the_doubt_is_not_taken() -> None:
    assert choose(poor(), [1.0, 1.75], doubt=0.005) == 1
    assert choose(poor(), [1.0, 1.75], doubt=0.1) == 0


def test_a_source_without_a_past_is_not_believed() -> None:
    assert choose(poor(), [1.0, 1.1, 1.2], doubt=0.01, believed=0.0) == 0


def test_what_might_pay_is_tried_while_the_account_lasts() -> None:
    probing = rich()
    tried = [choose(probing, [1.0, 1.3, 1.6], doubt=0.2, believed=0.0) for _ in range(200)]
    num_tried = sum(count > 0 for count in tried)
    assert 1 <= num_tried < 20
    assert probing.num_probes == num_tried


def test_a_probe_that_won_is_paid_back() -> None:
    def num_probes(num_output_tokens: int) -> int:
        probing = rich()
        for _ in range(100):
            if choose(probing, [1.0, 1.3, 1.6], doubt=0.2, believed=0.0):
                probing.settle(1.4, num_output_tokens)
        return probing.num_probes

    assert num_probes(3) == 100
    assert num_probes(1) < 20


def test_what_is_known_to_lose_is_checked_ever_more_seldom() -> None:
    probing, checked = rich(), []
    for step in range(1000):
        probing.earn(1.0)
        if choose(probing, [1.0, 1.9], doubt=0.01, chance=0.05):
            checked.append(step)
            probing.settle(1.9, 1)
    gaps = np.diff(checked)
    assert len(checked) >= 2
    assert (np.diff(gaps) >= 0).all()
    assert 0.9 * len(checked) / 1000 < 0.01


def test_probes_take_a_bounded_part_of_all_time() -> None:
    probing, lost, num_steps = rich(), 0.0, 5000
    for _ in range(num_steps):
        probing.earn(1.0)
        if choose(probing, [1.0, 1.5, 2.0], doubt=0.3, chance=0.6, believed=0.1):
            probing.settle(2.0, 1)
            lost += 1.0
    assert lost <= 0.01 * num_steps + 4


def test_figures_for_different_numbers_of_positions_are_refused() -> None:
    lengths = {"total": 3, "believed": 3, "seconds": 2, "doubt": 3}
    arrays = {name: np.ones(length) for name, length in lengths.items()}
    with pytest.raises(ValueError, match="seconds"):
        decide(num_base_tokens=1, probing=poor(), **arrays)
