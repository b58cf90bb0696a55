"""The controller under the physics of a large mixture of experts."""

from benchmarks.physics import DEVICES, Physics, new_controller, run
from benchmarks.replay import Controlled, Fixed
from services.scheduler.controller import StepShape


def test_the_physics_agree_with_the_published_figures() -> None:
    independent = Physics(DEVICES["B200"], sharing=1.0)
    shapes = [StepShape(num_rows=n, num_sequences=n, num_context_tokens=0) for n in (1, 4, 64)]
    assert [round(independent.num_distinct(shape)) for shape in shapes] == [8, 31, 284]
    four = StepShape(num_rows=4, num_sequences=1, num_context_tokens=0)
    assert 0.6 < Physics(DEVICES["B200"]).num_distinct(four) / 31 < 0.7


def test_the_chosen_lengths_show_the_three_regimes() -> None:
    """Long while latencies rule, short while each token wakes experts, long when all are awake."""
    lengths = {}
    for size in (1, 8, 96):
        found = run(Controlled(new_controller()), DEVICES["B200"], 0.7, size, num_tokens=120)
        without = run(Fixed(0), DEVICES["B200"], 0.7, size, num_tokens=20)
        assert found.tokens_per_second > 1.2 * without.tokens_per_second
        lengths[size] = found.mean_length
    assert lengths[1] > lengths[8] + 1
    assert lengths[96] > lengths[8] + 1
