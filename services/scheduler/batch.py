"""What goes to the group in one step, and what comes back."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Self

from outrider.rpc.errors import OutriderError, from_code
from outrider.v1 import features_pb2, sampling_pb2
from outrider.v1 import worker_pb2 as pb
from services.scheduler.controller import ModelFacts, Offer, StepShape
from services.scheduler.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class SequenceStep:
    """One sequence's part of a batch: which tokens are computed, and the draft verified behind them."""

    sequence: Sequence
    is_start: bool
    num_computed_tokens: int
    num_new_tokens: int
    new_block_ids: list[int] = field(default_factory=list)
    draft_token_ids: Tokens[int] = ()
    offer: Offer | None = None  # the draft that those tokens are the beginning of
    wants_features: bool = False

    @property
    def num_tokens_after(self) -> int:
        """Known tokens that are in the blocks after the step."""
        return self.num_computed_tokens + self.num_new_tokens

    @property
    def chooses(self) -> bool:
        """Whether the step computes the last known token, so that a token is chosen."""
        return self.num_computed_tokens + self.num_new_tokens == len(self.sequence.token_ids)

    def to_proto(self) -> pb.SequenceStep:
        """Writes the message; the group gets a sequence's tokens and parameters once."""
        step = pb.SequenceStep(
            sequence_id=self.sequence.id,
            num_computed_tokens=self.num_computed_tokens,
            num_new_tokens=self.num_new_tokens,
            draft_token_ids=self.draft_token_ids,
            new_block_ids=self.new_block_ids,
            wants_features=self.wants_features,
        )
        if self.is_start:
            step.start.token_ids.extend(self.sequence.token_ids)
            step.start.num_prompt_tokens = self.sequence.num_prompt_tokens
            step.start.params.CopyFrom(self.sequence.params)
            step.start.traceparent = self.sequence.trace.traceparent
        return step


@dataclass(slots=True, kw_only=True)
class Batch:
    """Which sequences run in one step, and which ones the group is to forget before it."""

    steps: list[SequenceStep] = field(default_factory=list)
    released_sequence_ids: list[int] = field(default_factory=list)

    @property
    def shape(self) -> StepShape:
        """What the step's time depends on."""
        num_rows = num_context_tokens = num_choosing = 0
        for step in self.steps:
            num_choosing += step.chooses
            num_context_tokens += step.num_computed_tokens + step.num_new_tokens
            num_rows += step.num_new_tokens + len(step.draft_token_ids)
        return StepShape(
            num_rows=num_rows,
            num_sequences=len(self.steps),
            num_context_tokens=num_context_tokens,
            num_choosing=num_choosing,
        )

    def to_proto(self, step_id: int) -> pb.Batch:
        """Writes the message of step `step_id`."""
        return pb.Batch(
            step_id=step_id,
            sequences=[step.to_proto() for step in self.steps],
            released_sequence_ids=self.released_sequence_ids,
        )


@dataclass(slots=True, kw_only=True)
class SequenceOutput:
    """The tokens chosen for a sequence, or why it cannot go on."""

    token_ids: tuple[int, ...] = ()
    num_accepted_tokens: int = 0
    logprobs: Tokens[sampling_pb2.TokenLogprobs] = ()
    forced_token_ids: tuple[int, ...] = ()
    is_grammar_complete: bool = False
    failure: OutriderError | None = None

    @classmethod
    def from_proto(cls, message: pb.SequenceOutput) -> Self:
        """Reads a message."""
        if message.HasField("failure"):
            failure = message.failure
            return cls(failure=from_code(failure.code, failure.message, field=failure.field))
        tokens = message.tokens
        return cls(
            token_ids=tuple(tokens.token_ids),
            num_accepted_tokens=tokens.num_accepted_tokens,
            logprobs=tokens.logprobs,
            forced_token_ids=tuple(tokens.forced_token_ids),
            is_grammar_complete=tokens.grammar_complete,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Hidden vectors of tokens in a row of one sequence, from `offset` on; nobody here looks into them."""

    sequence_id: int
    offset: int
    rows: bytes

    @classmethod
    def from_proto(cls, message: features_pb2.SequenceFeatures) -> Self:
        """Reads a message."""
        return cls(sequence_id=message.sequence_id, offset=message.offset, rows=message.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """The answer to a step."""

    outputs: dict[int, SequenceOutput]
    num_distinct_experts: Tokens[int] = ()
    features: Tokens[Features] = ()
    exchange_seconds: float = 0.0
    placement_version: int = 0

    @classmethod
    def from_proto(cls, message: pb.BatchOutput) -> Self:
        """Reads a message."""
        return cls(
            outputs={item.sequence_id: SequenceOutput.from_proto(item) for item in message.outputs},
            num_distinct_experts=tuple(message.num_distinct_experts),
            features=[Features.from_proto(item) for item in message.features],
            exchange_seconds=message.exchange_us / 1e6,
            placement_version=message.placement_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What the group is."""

    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    num_experts: int = 0
    num_experts_per_token: int = 0
    num_moe_layers: int = 0
    feature_size: int = 0  # 0: there are no hidden vectors to be had
    device: str = ""
    num_ranks: int = 1

    @property
    def experts(self) -> ModelFacts:
        """What the controller knows of the model."""
        return ModelFacts(
            num_experts=self.num_experts,
            num_experts_per_token=self.num_experts_per_token,
            num_moe_layers=self.num_moe_layers,
        )

    @property
    def max_num_tokens(self) -> int:
        """The longest sequence that the model and all blocks together can hold."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    def continues(self, other: "GroupFacts") -> bool:
        """Whether sequences begun on the group `other` may go on here: the same tokens, and room for them."""
        names = ("model", "numerics_id", "vocab_size", "block_size", "max_num_tokens")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @classmethod
    def from_proto(cls, message: pb.SessionOpened) -> Self:
        """Reads a message."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})
