"""What an answer is made of: the events of gateway.proto as dataclasses."""

from dataclasses import dataclass

from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import sampling_pb2
from services.gateway.output.piece import Piece


@dataclass(frozen=True, kw_only=True)
class Started:
    """The request was accepted."""

    request_id: str
    seed: int
    model: str
    numerics_id: str
    num_prompt_tokens: int
    num_cached_tokens: int

    def to_proto(self) -> pb.Started:
        """Writes a message."""
        return pb.Started(**vars(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What is new: text with exactly the tokens whose text it completes."""

    offset: int
    token_ids: list[int]
    content: Piece
    logprobs: list[sampling_pb2.TokenLogprobs]

    def to_proto(self) -> pb.Delta:
        """Writes a message."""
        return pb.Delta(
            offset=self.offset,
            token_ids=self.token_ids,
            text=self.content.text,
            reasoning=self.content.reasoning,
            tool_calls=[
                pb.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
                for call in self.content.tool_calls
            ],
            logprobs=self.logprobs,
        )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class SourceStatistics:
    """Drafts of one source."""

    source: str
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How the request fared."""

    ttft_ms: float
    time_to_first_answer_token_ms: float
    tokens_per_second: float
    num_steps: int
    num_preemptions: int
    sources: tuple[SourceStatistics, ...]

    def to_proto(self) -> pb.Statistics:
        """Writes a message; the totals are those of the sources."""
        return pb.Statistics(
            ttft_ms=self.ttft_ms,
            time_to_first_answer_token_ms=self.time_to_first_answer_token_ms,
            tokens_per_second=self.tokens_per_second,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            num_draft_tokens=sum(source.num_draft_tokens for source in self.sources),
            num_accepted_tokens=sum(source.num_accepted_tokens for source in self.sources),
            sources=[pb.SourceStatistics(**vars(source)) for source in self.sources],
        )


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of an answer. `reason` is stop, length or tool_calls."""

    reason: str
    usage: Usage
    statistics: Statistics
    stop_string: str | None
    stop_token_id: int | None

    def to_proto(self) -> pb.Finished:
        """Writes a message."""
        return pb.Finished(
            reason=f"FINISH_REASON_{self.reason.upper()}",
            usage=pb.Usage(**vars(self.usage)),
            statistics=self.statistics.to_proto(),
            stop_string=self.stop_string,
            stop_token_id=self.stop_token_id,
        )


Event = Started | Delta | Finished
