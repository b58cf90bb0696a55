"""When drafts are verified at all."""

import numpy as np

from services.scheduler.controller.decision import Prospect, decide
from services.scheduler.controller.probing import Probing


def prospect(seconds: list[float], doubt: float, *, believed: float = 1.0, chance: float = 0.8) -> Prospect:
    total = np.concatenate([[0], np.cumsum(chance ** np.arange(1, len(seconds)))])
    return Prospect(
        num_base_tokens=1,
        total=total,
        believed=believed * total,
        seconds=np.array(seconds),
        doubt=np.full(len(seconds), doubt),
    )


def poor() -> Probing:
    """Returns an account that nothing can be taken from."""
    return Probing()


def rich(step_seconds: float = 1.0) -> Probing:
    probing = Probing()
    probing.earn(step_seconds)
    return probing


def test_a_gain_beyond_doubt_is_taken() -> None:
    assert decide(prospect([1.0, 1.1, 1.2, 1.3, 1.4], doubt=0.02), poor()).num_positions == 4


def test_a_gain_within_the_doubt_is_not_taken() -> None:
    assert decide(prospect([1.0, 1.75], doubt=0.005), poor()).num_positions == 1
    assert decide(prospect([1.0, 1.75], doubt=0.1), poor()).num_positions == 0


def test_a_source_without_a_past_is_not_believed() -> None:
    assert decide(prospect([1.0, 1.1, 1.2], doubt=0.01, believed=0.0), poor()).num_positions == 0


def test_what_might_pay_is_tried_while_the_account_lasts() -> None:
    probing = rich()
    tried = [decide(prospect([1.0, 1.3, 1.6], doubt=0.2, believed=0.0), probing) for _ in range(200)]
    num_tried = sum(decision.num_positions > 0 for decision in tried)
    assert 1 <= num_tried < 20
    assert probing.num_probes == num_tried


def test_a_probe_that_won_is_paid_back() -> None:
    def num_probes(num_output_tokens: int) -> int:
        probing = rich()
        for _ in range(100):
            if decide(prospect([1.0, 1.3, 1.6], doubt=0.2, believed=0.0), probing).num_positions:
                probing.settle(1.4, num_output_tokens)
        return probing.num_probes

    assert num_probes(3) == 100
    assert num_probes(1) < 20


def test_what_is_known_to_lose_is_checked_ever_more_seldom() -> None:
    probing, checked = rich(), []
    for step in range(1000):
        probing.earn(1.0)
        if decide(prospect([1.0, 1.9], doubt=0.01, chance=0.05), probing).num_positions:
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
        if decide(prospect([1.0, 1.5, 2.0], doubt=0.3, chance=0.6, believed=0.1), probing).num_positions:
            probing.settle(2.0, 1)
            lost += 1.0
    assert lost <= 0.01 * num_steps + 4
