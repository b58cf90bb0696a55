"""What rank 0 tells the other ranks arrives as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.placement import Move
from services.worker.group.messages import Kind, Message, decode, encode

NUMBERS = st.integers(0, 2**31 - 1)
SMALL = st.integers(0, 40)


def lists(size):
    return st.lists(NUMBERS, min_size=size, max_size=size)


@st.composite
def batches(draw):
    num_rows = draw(SMALL)
    spans = st.builds(
        Span,
        first_row=NUMBERS,
        num_rows=NUMBERS,
        num_context=NUMBERS,
        block_ids=st.lists(NUMBERS, max_size=9),
    )
    return ForwardBatch(
        token_ids=torch.tensor(draw(lists(num_rows)), dtype=torch.int64),
        positions=torch.tensor(draw(lists(num_rows)), dtype=torch.int64),
        slots=torch.tensor(draw(lists(num_rows)), dtype=torch.int64),
        spans=tuple(draw(st.lists(spans, max_size=6))),
        logit_rows=torch.tensor(draw(st.lists(NUMBERS, max_size=9)), dtype=torch.int64),
        tap=draw(st.sampled_from([None, Tap(rows=torch.tensor([0]), layers=(1,))])),
    )


@given(batches(), NUMBERS)
def test_a_step_is_read_as_it_was_written_without_its_tap(batch, version):
    found = decode(encode(Message(kind=Kind.STEP, placement_version=version, batch=batch)))
    assert (found.kind, found.placement_version, found.moves) == (Kind.STEP, version, ())
    assert found.batch is not None
    assert found.batch.spans == batch.spans
    assert found.batch.tap is None
    for name in ("token_ids", "positions", "slots", "logit_rows"):
        tensor = getattr(found.batch, name)
        assert tensor.dtype == torch.int64
        assert torch.equal(tensor, getattr(batch, name))


@given(st.lists(st.builds(Move, layer=NUMBERS, slot=NUMBERS, expert=NUMBERS)), NUMBERS)
@pytest.mark.parametrize("kind", [Kind.PREPARE, Kind.PLACE, Kind.END])
def test_moves_are_read_as_they_were_written(kind, moves, version):
    message = Message(kind=kind, placement_version=version, moves=tuple(moves))
    assert decode(encode(message)) == message
