"""What rank 0 tells the other ranks, as integers in one buffer: one broadcast carries it.

| kind | placement version | sizes | contents, one list after another |
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.model.batch import ForwardBatch, Span
from outrider.model.placement import Move

Numbers = NDArray[np.int32]


class Kind(IntEnum):
    """What the ranks are to do."""

    STEP = 1
    # Read the weights of moves, aside; then let the moves that were prepared take effect.
    PREPARE = 2
    PLACE = 3
    END = 4


@dataclass(frozen=True, kw_only=True)
class Message:
    """A step has a batch, other kinds may have moves; the version is that of the placement until now."""

    kind: Kind
    placement_version: int = 0
    batch: ForwardBatch | None = None
    moves: tuple[Move, ...] = ()


def encode(message: Message) -> Numbers:
    """Returns the numbers of a message. Hidden vectors are rank 0's affair: a tap does not travel."""
    head = (message.kind, message.placement_version)
    moves = [(move.layer, move.slot, move.expert) for move in message.moves]
    if message.batch is None:
        return _joined([(*head, len(moves)), *moves])
    batch = message.batch
    spans = [(span.first_row, span.num_rows, span.num_context, len(span.block_ids)) for span in batch.spans]
    sizes = (len(batch.token_ids), len(spans), len(batch.logit_rows))
    rows = (batch.token_ids, batch.positions, batch.slots, batch.logit_rows)
    return _joined([(*head, *sizes), *rows, *spans, *(span.block_ids for span in batch.spans)])


def decode(numbers: Numbers) -> Message:
    """Returns the message that `encode` made numbers of."""
    reader = _Reader(numbers)
    kind, version = Kind(reader.next()), reader.next()
    if kind is Kind.STEP:
        return Message(kind=kind, placement_version=version, batch=_read_batch(reader))
    moves = [reader.take(3).tolist() for _ in range(reader.next())]
    found = tuple(Move(layer=layer, slot=slot, expert=expert) for layer, slot, expert in moves)
    return Message(kind=kind, placement_version=version, moves=found)


def _read_batch(reader: "_Reader") -> ForwardBatch:
    num_rows, num_spans, num_logit_rows = reader.take(3).tolist()
    token_ids, positions, slots = (reader.tensor(num_rows) for _ in range(3))
    logit_rows = reader.tensor(num_logit_rows)
    shapes = [reader.take(4).tolist() for _ in range(num_spans)]
    return ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        logit_rows=logit_rows,
        spans=tuple(
            Span(
                first_row=first_row,
                num_rows=rows,
                num_context=num_context,
                block_ids=reader.take(num_blocks).tolist(),
            )
            for first_row, rows, num_context, num_blocks in shapes
        ),
    )


class _Reader:
    """Reads numbers from the first on."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._place = 0

    def take(self, count: int) -> Numbers:
        found = self._numbers[self._place : self._place + count]
        self._place += count
        return found

    def next(self) -> int:
        return int(self.take(1)[0])

    def tensor(self, count: int) -> Tensor:
        return torch.from_numpy(self.take(count).astype(np.int64))


def _joined(parts: list[tuple[int, ...] | list[int] | Tensor]) -> Numbers:
    return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])
