"""What schedulers and the drafter tell each other: the dataclasses behind outrider/v1/drafter.proto."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from outrider.rpc.errors import InvalidArgument
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import features_pb2, sampling_pb2
from services.drafter.guess import SEPARATOR, Guess

MAX_TENANT_LENGTH = 256
SOURCES: Mapping[str, pb.DraftSource] = {
    "suffix": pb.DRAFT_SOURCE_SUFFIX,
    "model": pb.DRAFT_SOURCE_MODEL,
    "head": pb.DRAFT_SOURCE_HEAD,
}
_NAMES = {number: name for name, number in SOURCES.items()}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A sequence that drafts may be wanted for."""

    sequence_id: int
    tenant: str
    token_ids: array
    num_prompt_tokens: int
    params: sampling_pb2.SequenceParams
    traceparent: str

    @classmethod
    def from_proto(cls, message: pb.DraftSequenceOpened) -> Self:
        """Reads a message."""
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
            params=message.params,
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
class NewFeatures:
    """Hidden vectors of final tokens, the first of which has `offset` tokens before it."""

    sequence_id: int
    offset: int
    rows: bytes

    @classmethod
    def from_proto(cls, message: features_pb2.SequenceFeatures) -> Self:
        """Reads a message; how large a vector is, only a draft head knows."""
        return cls(sequence_id=message.sequence_id, offset=message.offset, rows=message.rows)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A draft that is wanted behind the first `base_length` tokens of the sequence; no `sources`: of all."""

    sequence_id: int
    base_length: int
    max_num_tokens: int
    sources: frozenset[str] = frozenset()

    @classmethod
    def from_proto(cls, message: pb.DraftWanted) -> Self:
        """Reads a message."""
        return cls(
            sequence_id=message.sequence_id,
            base_length=message.base_length,
            max_num_tokens=message.max_num_tokens,
            sources=_source_names(message.sources),
        )

    def asks(self, source: str) -> bool:
        """Whether the source is among those meant."""
        return not self.sources or source in self.sources


@dataclass(frozen=True, kw_only=True)
class Verifying:
    """What the group verifies behind the first `base_length` tokens; no `sources`: all may draft ahead."""

    sequence_id: int
    base_length: int
    token_ids: tuple[int, ...]
    max_num_tokens: int
    sources: frozenset[str] = frozenset()

    @classmethod
    def from_proto(cls, message: pb.DraftVerifying) -> Self:
        """Reads a message."""
        return cls(
            sequence_id=message.sequence_id,
            base_length=message.base_length,
            token_ids=tuple(_token_ids(message.token_ids, "verifying.token_ids")),
            max_num_tokens=message.max_num_tokens,
            sources=_source_names(message.sources),
        )

    def asks(self, source: str) -> bool:
        """Whether the source is among those meant."""
        return not self.sources or source in self.sources


@dataclass(frozen=True, kw_only=True)
class News:
    """One message of a scheduler, to be acted on in the order of the fields."""

    opened: Sequence[Opened] = ()
    committed: Sequence[Committed] = ()
    closed: Sequence[Closed] = ()
    features: Sequence[NewFeatures] = ()
    wanted: Sequence[Wanted] = ()
    verifying: Sequence[Verifying] = ()
    request_id: int = 0
    ahead_seconds: float = 0.0

    @classmethod
    def from_proto(cls, message: pb.ProposeRequest) -> Self:
        """Reads a message. Raises InvalidArgument naming the first field that is wrong."""
        return cls(
            opened=[Opened.from_proto(item) for item in message.opened],
            committed=[Committed.from_proto(item) for item in message.committed],
            closed=[Closed.from_proto(item) for item in message.closed],
            features=[NewFeatures.from_proto(item) for item in message.features],
            wanted=[Wanted.from_proto(item) for item in message.wanted],
            verifying=[Verifying.from_proto(item) for item in message.verifying],
            request_id=message.request_id,
            ahead_seconds=message.ahead_us * 1e-6,
        )


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A guess of what follows the first `base_length` tokens of a sequence, which have this hash."""

    sequence_id: int
    base_length: int
    base_hash: int
    guess: Guess

    def to_proto(self, source: pb.DraftSource) -> pb.Draft:
        """Writes a message."""
        return pb.Draft(
            sequence_id=self.sequence_id,
            base_length=self.base_length,
            base_hash=self.base_hash,
            token_ids=self.guess.token_ids,
            confidences=self.guess.confidences,
            source=source,
            match_length=self.guess.match_length,
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a source made of `num_questions`, for a request or ahead (request id 0). None: no source."""

    source: str | None = None
    drafts: Sequence[Draft] = ()
    num_questions: int = 0
    seconds: float = 0.0
    request_id: int = 0
    complete: bool = False

    def to_proto(self) -> pb.ProposeResponse:
        """Writes a message."""
        message = pb.ProposeResponse(request_id=self.request_id, complete=self.complete)
        if self.source is not None:
            source = SOURCES[self.source]
            message.drafts.extend(draft.to_proto(source) for draft in self.drafts)
            compute_us = round(self.seconds * 1e6)
            message.times.add(source=source, compute_us=compute_us, num_drafts=self.num_questions)
        return message


def _source_names(numbers: Iterable[pb.DraftSource]) -> frozenset[str]:
    """Reads which sources are meant; of one that is not known here nothing can be had."""
    return frozenset(_NAMES.get(number, "unknown") for number in numbers)


def _token_ids(values: Iterable[int], field: str) -> array:
    token_ids = array("I", values)
    if SEPARATOR in token_ids:
        raise InvalidArgument(f"{SEPARATOR} is no token id", field=field)
    return token_ids
