"""The messages that start sequences stay far below the limit of a message."""

from outrider.v1 import sampling_pb2
from services.scheduler.schedule import MAX_NUM_START_BYTES
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule


def test_sequences_with_large_parameters_start_in_several_steps() -> None:
    make = SequenceMaker()
    schedule = make_schedule(ReferenceGroup(num_blocks=64, max_num_batched_tokens=64), max_num_seqs=32)
    sampling = sampling_pb2.SamplingParams(logit_bias=dict.fromkeys(range(160_000), -1.0))
    params = sampling_pb2.SequenceParams(sampling=sampling)
    for _ in range(16):
        schedule.add(sequence := make([1]))
        sequence.params = params
    batch = schedule.schedule()
    assert 1 < len(batch.steps) < 16
    assert batch.to_proto(1).ByteSize() < MAX_NUM_START_BYTES + params.ByteSize() + 1000
