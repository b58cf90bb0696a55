"""What a scheduler asks in one step, and the answer."""

from dataclasses import dataclass, field
from typing import Self

from outrider.model.sampling import Output
from outrider.rpc.errors import OutriderError
from outrider.v1 import features_pb2, sampling_pb2
from outrider.v1 import worker_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """A sequence that the group does not know. Its parameters are read later: their faults are its own."""

    token_ids: list[int]
    num_prompt_tokens: int
    params: sampling_pb2.SequenceParams
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """One sequence's part of a batch."""

    sequence_id: int
    start: SequenceStart | None
    num_computed_tokens: int
    num_new_tokens: int
    draft_token_ids: list[int]
    new_block_ids: list[int]
    wants_features: bool = False

    @property
    def num_rows(self) -> int:
        """How many tokens it computes."""
        return self.num_new_tokens + len(self.draft_token_ids)

    @property
    def num_context(self) -> int:
        """How many tokens are in its blocks after the step, right or wrong."""
        return self.num_computed_tokens + self.num_rows

    @classmethod
    def from_proto(cls, message: pb.SequenceStep) -> Self:
        """Reads a message."""
        start = None
        if message.HasField("start"):
            start = SequenceStart(
                token_ids=list(message.start.token_ids),
                num_prompt_tokens=message.start.num_prompt_tokens,
                params=message.start.params,
                traceparent=message.start.traceparent,
            )
        return cls(
            sequence_id=message.sequence_id,
            start=start,
            num_computed_tokens=message.num_computed_tokens,
            num_new_tokens=message.num_new_tokens,
            draft_token_ids=list(message.draft_token_ids),
            new_block_ids=list(message.new_block_ids),
            wants_features=message.wants_features,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The sequences of one step."""

    step_id: int
    steps: list[SequenceStep]
    released_sequence_ids: list[int] = field(default_factory=list)

    @classmethod
    def from_proto(cls, message: pb.Batch) -> Self:
        """Reads a message."""
        return cls(
            step_id=message.step_id,
            steps=[SequenceStep.from_proto(step) for step in message.sequences],
            released_sequence_ids=list(message.released_sequence_ids),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFeatures:
    """Hidden vectors of the tokens of a sequence from `offset` on."""

    sequence_id: int
    offset: int
    rows: bytes

    def to_proto(self) -> features_pb2.SequenceFeatures:
        """Writes a message."""
        return features_pb2.SequenceFeatures(sequence_id=self.sequence_id, offset=self.offset, rows=self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """What a step made of its sequences: output or failure, by sequence, and hidden vectors."""

    step_id: int
    outcomes: dict[int, Output | OutriderError]
    forward_seconds: float
    sample_seconds: float
    num_distinct_experts: list[int]
    features: list[SequenceFeatures] = field(default_factory=list)
    exchange_seconds: float = 0.0
    placement_version: int = 0

    def to_proto(self) -> pb.BatchOutput:
        """Writes a message."""
        return pb.BatchOutput(
            step_id=self.step_id,
            outputs=[_outcome(sequence_id, outcome) for sequence_id, outcome in self.outcomes.items()],
            forward_us=round(self.forward_seconds * 1e6),
            sample_us=round(self.sample_seconds * 1e6),
            num_distinct_experts=self.num_distinct_experts,
            features=[item.to_proto() for item in self.features],
            exchange_us=round(self.exchange_seconds * 1e6),
            placement_version=self.placement_version,
        )


def _outcome(sequence_id: int, outcome: Output | OutriderError) -> pb.SequenceOutput:
    if isinstance(outcome, OutriderError):
        failure = pb.SequenceFailure(code=outcome.code.value[0], message=outcome.message, field=outcome.field)
        return pb.SequenceOutput(sequence_id=sequence_id, failure=failure)
    tokens = pb.OutputTokens(
        token_ids=outcome.token_ids,
        num_accepted_tokens=outcome.num_accepted_tokens,
        forced_token_ids=outcome.forced_token_ids,
        grammar_complete=outcome.grammar_complete,
    )
    for entry in outcome.logprobs or ():
        top = [sampling_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in entry.top]
        tokens.logprobs.append(sampling_pb2.TokenLogprobs(logprob=entry.logprob, top=top))
    return pb.SequenceOutput(sequence_id=sequence_id, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """What the group is."""

    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    num_experts: int
    num_experts_per_token: int
    num_moe_layers: int
    feature_size: int
    device: str
    num_ranks: int = 1

    def to_proto(self) -> pb.SessionOpened:
        """Writes a message."""
        return pb.SessionOpened(**{name: getattr(self, name) for name in self.__dataclass_fields__})
