"""What a scheduler is told of a request."""

import time
from collections.abc import Mapping
from collections.abc import Sequence as TypingSequence
from dataclasses import dataclass

from outrider.params import SequenceParams
from outrider.v1 import sampling_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.auth import Tenant
from services.gateway.messages import Speculation
from services.gateway.output.marks import Mark

# What is generated behind a mark.
_PHASES = {
    Mark.THINK_BEGIN: pb.PHASE_THINKING,
    Mark.THINK_END: pb.PHASE_ANSWER,
    Mark.ARGUMENT_BEGIN: pb.PHASE_TOOL_ARGUMENTS,
    Mark.CALL_END: pb.PHASE_ANSWER,
}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A request as schedulers know it, wherever and however often it is sent."""

    request_id: str
    tenant: Tenant
    priority: int
    prompt_token_ids: tuple[int, ...]
    # Output tokens that the client has already.
    resumed_token_ids: tuple[int, ...]
    # Of the group that the resumed tokens are of; empty: any group may run it.
    numerics_id: str
    # Of prompt and resumed tokens, in blocks of the size that most groups have.
    block_size: int
    block_hashes: tuple[bytes, ...]
    params: SequenceParams
    speculation: Speculation
    # The structuring tokens of the model, by id.
    marks: Mapping[int, Mark]
    # On the clock of time.monotonic; None: no deadline.
    deadline: float | None
    traceparent: str

    @property
    def max_tokens(self) -> int:
        """Returns the most output tokens there can be."""
        assert self.params.sampling.max_tokens is not None
        return self.params.sampling.max_tokens

    @property
    def max_draft_tokens(self) -> int | None:
        """Returns the longest draft that both client and tenant may have; None: as the scheduler likes."""
        limits = (self.speculation.max_draft_tokens, self.tenant.max_draft_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    def to_proto(
        self, sequence_id: int, output_token_ids: TypingSequence[int], *, was_accepted: bool
    ) -> pb.Submit:
        """Writes the message that runs it from `output_token_ids` on."""
        message = pb.Submit(
            sequence_id=sequence_id,
            request_id=self.request_id,
            tenant=self.tenant.name,
            tenant_weight=self.tenant.weight,
            priority=self.priority,
            prompt_token_ids=self.prompt_token_ids,
            output_token_ids=output_token_ids,
            params=self.params.to_proto(),
            speculation=sampling_pb2.Speculation(
                disabled=self.speculation.disabled, max_draft_tokens=self.max_draft_tokens
            ),
            traceparent=self.traceparent,
            phase_marks=[
                pb.PhaseMark(token_id=token_id, phase=_PHASES[mark])
                for token_id, mark in self.marks.items()
                if mark in _PHASES
            ],
            was_accepted=was_accepted,
        )
        if self.deadline is not None:
            message.timeout.FromNanoseconds(max(0, int((self.deadline - time.monotonic()) * 1e9)))
        return message
