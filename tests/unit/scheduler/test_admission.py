"""Who is refused at the door, and on what grounds."""

import math

import pytest

from outrider.params import SequenceParams
from outrider.rpc.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from services.scheduler.admission import RESUMED_FACTOR, check_load, check_tokens
from services.scheduler.batch import GroupFacts
from services.scheduler.config import Config
from services.scheduler.fairness import Tenants
from services.scheduler.load import Speed
from services.scheduler.sequence import Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker

CONFIG = Config(worker="worker:1", max_num_waiting=2, max_num_waiting_tokens=100)
FACTS = GroupFacts.from_proto(ReferenceGroup(num_blocks=8, block_size=4, max_model_len=1000).opened)


def waiting(*sequences: Sequence) -> Tenants:
    tenants = Tenants()
    for sequence in sequences:
        tenants.enter(sequence)
        tenants.add(sequence)
    return tenants


def measured(rows_per_second: float) -> Speed:
    speed = Speed()
    num_rows = round(rows_per_second)
    speed.add_step(seconds=1.0, exchange_seconds=0.0, num_rows=num_rows, max_num_rows=num_rows)
    return speed


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1] * 32}, "prompt"),
        ({"prompt": [11]}, "prompt"),
        ({"prompt": [1], "resumed": (11,)}, "resume"),
        ({"prompt": [1], "resumed": (5, 1), "stop": frozenset([5])}, "resume"),
        ({"prompt": [1], "tenant_weight": 0.0}, "tenant_weight"),
        ({"prompt": [1], "tenant_weight": math.nan}, "tenant_weight"),
    ],
)
def test_a_sequence_that_can_never_run_is_refused_by_field(fields: dict, field: str) -> None:
    sequence = SequenceMaker()(**fields)
    with pytest.raises(InvalidArgument) as caught:
        check_tokens(sequence, SequenceParams.from_proto(sequence.params), FACTS)
    assert caught.value.field == field


def test_a_sequence_that_fits_all_blocks_is_let_in() -> None:
    sequence = SequenceMaker()([1] * 31)
    check_tokens(sequence, SequenceParams.from_proto(sequence.params), FACTS)


def test_too_many_waiting_sequences_refuse_the_next_with_a_delay_from_the_measured_speed() -> None:
    make = SequenceMaker()
    with pytest.raises(ResourceExhausted) as caught:
        check_load(make([1]), None, CONFIG, waiting(make([1] * 20), make([1] * 20)), measured(10))
    assert caught.value.retry_delay is not None
    assert caught.value.retry_delay.total_seconds() == 4


def test_too_many_waiting_tokens_refuse_the_next() -> None:
    make = SequenceMaker()
    with pytest.raises(ResourceExhausted):
        check_load(make([1] * 11), None, CONFIG, waiting(make([1] * 90)), Speed())


def test_resumed_sequences_are_let_in_up_to_several_times_the_limits() -> None:
    make = SequenceMaker()
    most = [make([1] * 40) for _ in range(RESUMED_FACTOR * CONFIG.max_num_waiting)]
    resumed = make([1], resumed=(2,))
    check_load(resumed, 0.001, CONFIG, waiting(*most[:-1]), measured(10))
    with pytest.raises(ResourceExhausted) as caught:
        check_load(resumed, None, CONFIG, waiting(*most), measured(10))
    assert caught.value.retry_delay is not None


def test_what_a_lost_scheduler_had_accepted_has_the_room_of_resumed_sequences() -> None:
    make = SequenceMaker()
    most = [make([1] * 40) for _ in range(RESUMED_FACTOR * CONFIG.max_num_waiting)]
    check_load(make([1]), 0.001, CONFIG, waiting(*most[:-1]), measured(10), was_accepted=True)
    with pytest.raises(ResourceExhausted):
        check_load(make([1]), None, CONFIG, waiting(*most), measured(10), was_accepted=True)


def test_resumed_sequences_of_too_many_tokens_in_all_are_refused() -> None:
    make = SequenceMaker()
    tenants = waiting(make([1] * (RESUMED_FACTOR * CONFIG.max_num_waiting_tokens)))
    with pytest.raises(ResourceExhausted):
        check_load(make([1], resumed=(2,)), None, CONFIG, tenants, Speed())


@pytest.mark.parametrize("resumed", [(), (2,)])
def test_a_tenant_that_fills_all_places_keeps_no_other_out(resumed: tuple[int, ...]) -> None:
    make = SequenceMaker()
    num_places = CONFIG.max_num_waiting * (RESUMED_FACTOR if resumed else 1)
    tenants = waiting(*(make([1], tenant="greedy") for _ in range(num_places)))
    check_load(make([1], tenant="modest", resumed=resumed), None, CONFIG, tenants, Speed())
    with pytest.raises(ResourceExhausted):
        check_load(make([1], tenant="greedy", resumed=resumed), None, CONFIG, tenants, Speed())


def test_once_all_places_are_taken_a_tenant_has_only_its_share_by_weight() -> None:
    make = SequenceMaker()
    config = Config(worker="worker:1", max_num_waiting=12, max_num_waiting_tokens=1000)
    tenants = waiting(*(make([1], tenant="greedy", tenant_weight=2.0) for _ in range(12)))
    for _ in range(4):
        check_load(sequence := make([1], tenant="modest"), None, config, tenants, Speed())
        tenants.enter(sequence)
        tenants.add(sequence)
    with pytest.raises(ResourceExhausted):
        check_load(make([1], tenant="modest"), None, config, tenants, Speed())


def test_a_deadline_that_cannot_be_met_is_refused_only_once_the_speed_was_measured() -> None:
    make = SequenceMaker()
    check_load(make([1] * 30), 2.0, CONFIG, waiting(), Speed())
    check_load(make([1] * 30), 4.0, CONFIG, waiting(), measured(10))
    with pytest.raises(DeadlineExceeded):
        check_load(make([1] * 30), 2.0, CONFIG, waiting(), measured(10))


def test_steps_that_are_mostly_empty_say_nothing_about_the_speed() -> None:
    speed = Speed()
    speed.add_step(seconds=1.0, exchange_seconds=0.0, num_rows=1, max_num_rows=100)
    assert speed.rows_per_second.value is None
