"""What schedulers and the drafter tell each other: the dataclasses behind outrider/v1/drafter.proto."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from outrider.rpc.errors import InvalidArgument
from outrider.v1 import drafter_pb2 as pb
from services.drafter.guess import SEPARATOR, Guess

MAX_TENANT_LENGTH = 256


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A sequence that drafts may be wanted for."""

    sequence_id: int
    tenant: str
    token_ids: array
    num_prompt_tokens: int
    traceparent: str

    @classmethod
    def from_proto(cls, message: pb.DraftSequenceOpened) -> Self:
        """Reads a message; what only a draft model would use is left aside."""
        if message.num_prompt_tokens > len(message.token_ids):
            raise InvalidArgument(
                f"is {message.num_prompt_tokens}, above the {len(message.token_ids)} tokens of the sequence",
                field="opened.num_prompt_tokens",
            )
        if len(message.tenant) > MAX_TENANT_LENGTH:
            raise InvalidArgument(f"is longer than {MAX_TENANT_LENGTH} characters", field="opened.tenant")
        return cls(
            sequence_id=message.sequence_id,
            tenant=message.tenant,
            token_ids=_token_ids(message.token_ids, "opened.token_ids"),
            num_prompt_tokens=message.num_prompt_tokens,
            traceparent=message.traceparent,
        )


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Tokens that became final, behind the first `offset` tokens of the sequence."""

    sequence_id: int
    offset: int
    token_ids: array

    @classmethod
    def from_proto(cls, message: pb.DraftTokensCommitted) -> Self:
        """Reads a message."""
        token_ids = _token_ids(message.token_ids, "committed.token_ids")
        return cls(sequence_id=message.sequence_id, offset=message.offset, token_ids=token_ids)


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A sequence that ended, and whether its text is worth remembering."""

    sequence_id: int
    finished: bool

    @classmethod
    def from_proto(cls, message: pb.DraftSequenceClosed) -> Self:
        """Reads a message."""
        return cls(sequence_id=message.sequence_id, finished=message.finished)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A draft that is wanted behind the first `base_length` tokens of the sequence."""

    sequence_id: int
    base_length: int
    max_num_tokens: int

    @classmethod
    def from_proto(cls, message: pb.DraftWanted) -> Self:
        """Reads a message."""
        return cls(
            sequence_id=message.sequence_id,
            base_length=message.base_length,
            max_num_tokens=message.max_num_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class News:
    """One message of a scheduler, to be acted on in the order of the fields."""

    opened: Sequence[Opened]
    committed: Sequence[Committed]
    closed: Sequence[Closed]
    wanted: Sequence[Wanted]

    @classmethod
    def from_proto(cls, message: pb.ProposeRequest) -> Self:
        """Reads a message. Raises InvalidArgument naming the first field that is wrong."""
        return cls(
            opened=[Opened.from_proto(item) for item in message.opened],
            committed=[Committed.from_proto(item) for item in message.committed],
            closed=[Closed.from_proto(item) for item in message.closed],
            wanted=[Wanted.from_proto(item) for item in message.wanted],
        )


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A guess of what follows the first `base_length` tokens of a sequence, which have this hash."""

    sequence_id: int
    base_length: int
    base_hash: int
    guess: Guess

    def to_proto(self) -> pb.Draft:
        """Writes a message."""
        return pb.Draft(
            sequence_id=self.sequence_id,
            base_length=self.base_length,
            base_hash=self.base_hash,
            token_ids=self.guess.token_ids,
            confidences=self.guess.confidences,
            source=pb.DRAFT_SOURCE_SUFFIX,
            match_length=self.guess.match_length,
        )


def _token_ids(values: Iterable[int], field: str) -> array:
    token_ids = array("I", values)
    if SEPARATOR in token_ids:
        raise InvalidArgument(f"{SEPARATOR} is no token id", field=field)
    return token_ids
