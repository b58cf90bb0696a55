"""A sequence as the drafter knows it."""

from array import array
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from outrider import token_hash
from outrider.v1 import sampling_pb2


@dataclass(slots=True)
class Features:
    """Hidden vectors of the group for the tokens from `offset` on: bf16, `feature_size` to a token."""

    offset: int
    rows: bytearray


@dataclass(slots=True, kw_only=True, eq=False)
class RunningSequence:
    """The tokens of a sequence that are final, their hash, and what decides those to come."""

    id: int
    tenant: str
    num_prompt_tokens: int
    params: sampling_pb2.SequenceParams
    span: Span
    token_ids: array = field(default_factory=lambda: array("I"))
    hash: int = token_hash.EMPTY
    features: Features | None = None
    num_drafts: int = 0
    num_draft_tokens: int = 0

    def extend(self, token_ids: array) -> None:
        """Adds final tokens."""
        self.token_ids.extend(token_ids)
        self.hash = token_hash.extend(self.hash, token_ids)
