"""What comes back: deltas while an answer grows, and the whole of it at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import sampling_pb2


@dataclass(frozen=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call; the id and the name come with the first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    @classmethod
    def from_proto(cls, message: pb.ToolCallDelta) -> Self:
        """Reads a message."""
        return cls(index=message.index, id=message.id, name=message.name, arguments=message.arguments)


@dataclass(frozen=True, kw_only=True)
class Logprobs:
    """Log-probabilities at one output position: the chosen token's, and the likeliest alternatives'."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_proto(cls, message: sampling_pb2.TokenLogprobs) -> Self:
        """Reads a message."""
        return cls(logprob=message.logprob, top=tuple((top.token_id, top.logprob) for top in message.top))


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What is new: text with exactly the tokens whose text it completes."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()

    @classmethod
    def from_proto(cls, message: pb.Delta) -> Self:
        """Reads a message."""
        return cls(
            text=message.text,
            reasoning=message.reasoning,
            tool_calls=tuple(map(ToolCallDelta.from_proto, message.tool_calls)),
            token_ids=tuple(message.token_ids),
            logprobs=tuple(map(Logprobs.from_proto, message.logprobs)),
        )


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call of a tool that the model asks for; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    completion_tokens: int

    @classmethod
    def from_proto(cls, message: pb.Usage) -> Self:
        """Reads a message."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class SourceStatistics:
    """Draft tokens of one source that were verified and found right; suffix, model, head or grammar."""

    source: str
    num_draft_tokens: int
    num_accepted_tokens: int

    @classmethod
    def from_proto(cls, message: pb.SourceStatistics) -> Self:
        """Reads a message."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How a request fared; see outrider.v1.Statistics."""

    ttft_ms: float
    time_to_first_answer_token_ms: float
    tokens_per_second: float
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    sources: tuple[SourceStatistics, ...]

    @classmethod
    def from_proto(cls, message: pb.Statistics) -> Self:
        """Reads a message."""
        sources = tuple(map(SourceStatistics.from_proto, message.sources))
        names = [name for name in cls.__dataclass_fields__ if name != "sources"]
        return cls(**{name: getattr(message, name) for name in names}, sources=sources)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer; `finish_reason` is stop, length or tool_calls."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = field(repr=False)
    finish_reason: str
    stop_string: str | None
    stop_token_id: int | None
    usage: Usage
    stats: Statistics
    seed: int
    model: str
    numerics_id: str
    request_id: str


def gather(deltas: Iterable[Delta], started: pb.Started, finished: pb.Finished) -> Answer:
    """Puts the pieces of an answer together."""
    deltas = list(deltas)
    return Answer(
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=_gather_tool_calls(piece for delta in deltas for piece in delta.tool_calls),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprobs for delta in deltas for logprobs in delta.logprobs),
        finish_reason=pb.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower(),
        stop_string=finished.stop_string if finished.HasField("stop_string") else None,
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
        usage=Usage.from_proto(finished.usage),
        stats=Statistics.from_proto(finished.statistics),
        seed=started.seed,
        model=started.model,
        numerics_id=started.numerics_id,
        request_id=started.request_id,
    )


def _gather_tool_calls(pieces: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    calls: dict[int, list[ToolCallDelta]] = {}
    for piece in pieces:
        calls.setdefault(piece.index, []).append(piece)
    return tuple(
        ToolCall(
            id="".join(piece.id for piece in call),
            name="".join(piece.name for piece in call),
            arguments="".join(piece.arguments for piece in call),
        )
        for _, call in sorted(calls.items())
    )
