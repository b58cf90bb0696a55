"""What the drafter is told, gathered until it is sent."""

from collections import deque
from collections.abc import Iterable, Sequence

from outrider.v1 import drafter_pb2 as pb
from services.scheduler.batch import Features
from services.scheduler.drafter_answer import SOURCES
from services.scheduler.sequence import FinishReason
from services.scheduler.sequence import Sequence as RunningSequence

# Hidden vectors that wait to be sent; what is beyond is left out, and the head works without.
MAX_NUM_FEATURE_BYTES = 16 << 20
# Texts that a message opens, but for the first: to write and send so much takes milliseconds of the event
# loop, and a drafter that comes back knows none of the texts that run.
MAX_NUM_OPENED_BYTES = 400_000
# Tokens of known texts that wait to be sent. More gather only while the drafter takes no message: it hears of
# them later, and learns nothing of what ends meanwhile.
MAX_NUM_COMMITTED_BYTES = 4_000_000
# Texts that have ended and that the drafter is still to learn from; of more the oldest are forgotten.
MAX_NUM_ENDED_BYTES = 4_000_000
_BYTES_PER_TOKEN = 3
_BYTES_PER_COMMIT = 16
_NUMBERS = {name: number for number, name in SOURCES.items()}


class News:
    """The next message, and which tokens of which sequences the drafter knows from those before.

    It knows of a sequence from the first time that it is told of it; what it has not been told since goes
    with the next message that concerns the sequence.
    """

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # sequence id -> tokens that the drafter knows
        self._message = pb.ProposeRequest()
        self._num_feature_bytes = 0
        self._num_opened_bytes = 0
        self._num_committed_bytes = 0
        self._ended: deque[RunningSequence] = deque()  # for which there was no room
        self._num_ended_bytes = 0
        self._last_id = 0

    @property
    def num_closed(self) -> int:
        """Sequences that ended and whose end was not sent yet."""
        return len(self._message.closed)

    @property
    def has_questions(self) -> bool:
        """Whether the message wants drafts."""
        return bool(self._message.wanted)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        message = self._message
        told = message.committed or message.opened or message.closed or message.features
        return not (told or message.wanted or message.verifying or self._ended)

    @property
    def has_ended_texts(self) -> bool:
        """Whether texts that have ended are left for messages after this one."""
        return bool(self._ended)

    def knows(self, sequence_id: int) -> bool:
        """Whether the drafter was told of a sequence that has not ended."""
        return sequence_id in self._told

    def tell(self, sequence: RunningSequence) -> bool:
        """Tells what became final since the drafter last heard of the sequence.

        Returns False where that would make the message too long: it is left to a later one.
        """
        num_told = self._told.get(sequence.id)
        if num_told is None:
            if not self._has_room_for(sequence):
                return False
            self._open(sequence)
        elif num_told < sequence.num_tokens:
            if self._num_committed_bytes > MAX_NUM_COMMITTED_BYTES:
                return False
            token_ids = sequence.token_ids[num_told:]
            self._num_committed_bytes += _BYTES_PER_COMMIT + _BYTES_PER_TOKEN * len(token_ids)
            self._message.committed.add(sequence_id=sequence.id, offset=num_told, token_ids=token_ids)
        self._told[sequence.id] = sequence.num_tokens
        return True

    def want(self, sequence: RunningSequence, sources: Iterable[str]) -> bool:
        """Asks for drafts that follow the sequence; returns False if it cannot be told of now."""
        if not self.tell(sequence):
            return False
        self._message.wanted.add(
            sequence_id=sequence.id,
            base_length=sequence.num_tokens,
            max_num_tokens=sequence.num_useful_draft_tokens,
            sources=[_NUMBERS[source] for source in sources],
        )
        return True

    def verify(self, sequence: RunningSequence, token_ids: Sequence[int], sources: Iterable[str]) -> None:
        """Says which draft is being verified behind the sequence, so that outcomes can be drafted for."""
        if not self.tell(sequence):
            return
        self._message.verifying.add(
            sequence_id=sequence.id,
            base_length=sequence.num_tokens,
            token_ids=token_ids,
            max_num_tokens=sequence.num_useful_draft_tokens,
            sources=[_NUMBERS[source] for source in sources],
        )

    def show(self, sequence: RunningSequence, features: Features) -> bool:
        """Passes hidden vectors of a sequence on; returns False if too much waits already."""
        self._num_feature_bytes += len(features.rows)
        if self._num_feature_bytes > MAX_NUM_FEATURE_BYTES or not self.tell(sequence):
            return False
        self._message.features.add(
            sequence_id=features.sequence_id, offset=features.offset, rows=features.rows
        )
        return True

    def close(self, sequence: RunningSequence) -> None:
        """Tells that a sequence has ended, with its last tokens."""
        is_told = self.tell(sequence)
        if is_told or self.knows(sequence.id):
            self._end(sequence, is_whole=is_told)
            return
        self._ended.append(sequence)
        self._num_ended_bytes += _num_bytes(sequence)
        while self._num_ended_bytes > MAX_NUM_ENDED_BYTES:
            self._num_ended_bytes -= _num_bytes(self._ended.popleft())

    def allow(self, seconds: float) -> None:
        """Says how long from now drafts for outcomes are of use."""
        self._message.ahead_us = int(seconds * 1e6)

    def drop_questions(self) -> None:
        """Takes back what was asked and not sent: the sequences have moved on."""
        del self._message.wanted[:]
        del self._message.verifying[:]
        self._message.ahead_us = 0

    def take(self) -> pb.ProposeRequest:
        """Returns the message, numbered, and begins the next."""
        while self._ended and self._has_room_for(self._ended[0]):
            sequence = self._ended.popleft()
            self._num_ended_bytes -= _num_bytes(sequence)
            self._open(sequence)
            self._end(sequence, is_whole=True)
        message, self._message = self._message, pb.ProposeRequest()
        self._num_feature_bytes = self._num_opened_bytes = self._num_committed_bytes = 0
        self._last_id += 1
        message.request_id = self._last_id
        return message

    def _has_room_for(self, sequence: RunningSequence) -> bool:
        """Returns whether the message may open one text more; it may always open one."""
        num_bytes = self._num_opened_bytes
        return not num_bytes or num_bytes + _num_bytes(sequence) <= MAX_NUM_OPENED_BYTES

    def _open(self, sequence: RunningSequence) -> None:
        self._num_opened_bytes += _num_bytes(sequence)
        opened = self._message.opened.add(
            sequence_id=sequence.id,
            tenant=sequence.tenant,
            token_ids=sequence.token_ids,
            num_prompt_tokens=sequence.num_prompt_tokens,
            traceparent=sequence.trace.traceparent,
        )
        opened.params.CopyFrom(sequence.params)

    def _end(self, sequence: RunningSequence, *, is_whole: bool) -> None:
        finished = is_whole and sequence.end in (FinishReason.STOP, FinishReason.LENGTH)
        self._message.closed.add(sequence_id=sequence.id, finished=finished)
        self._told.pop(sequence.id, None)


def _num_bytes(sequence: RunningSequence) -> int:
    return _BYTES_PER_TOKEN * sequence.num_tokens + sequence.params.ByteSize()
