"""A sequence as the drafter knows it."""

from array import array
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from outrider import token_hash
from outrider.v1 import sampling_pb2
from services.drafter.guess import Guess
from services.drafter.messages import Draft

# Hidden vectors kept: of the last tokens of a prompt, and of the last tokens of all.
MAX_NUM_PROMPT_FEATURES = 1024
MAX_NUM_FEATURES = 2048
# Drafts of one source remembered, to tell what a step that verifies one of them may lead to.
MAX_NUM_DRAFTS = 24


@dataclass(slots=True)
class Features:
    """Hidden vectors of the group for the tokens from `offset` on: bf16, `feature_size` to a token."""

    offset: int
    rows: bytearray

    def add(self, offset: int, rows: bytes, row_bytes: int) -> None:
        """Adds vectors behind those there are; where they do not fit, the new ones replace all.

        Those of tokens before the first are repeats of what has been read, and are left out.
        """
        rows = rows[max(0, self.offset - offset) * row_bytes :]
        start = max(0, offset - self.offset) * row_bytes
        known = self.rows[start : start + len(rows)]
        if start <= len(self.rows) and rows.startswith(known):
            self.rows += rows[len(known) :]
        else:
            self.offset, self.rows = max(offset, self.offset), bytearray(rows)

    def forget_before(self, offset: int, row_bytes: int) -> None:
        """Forgets the vectors of earlier tokens."""
        num_rows = min(max(0, offset - self.offset), len(self.rows) // row_bytes)
        del self.rows[: num_rows * row_bytes]
        self.offset += num_rows


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
    # What each source has guessed, latest last.
    drafts: dict[str, list[Draft]] = field(default_factory=dict)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    # Nothing is to be drafted for it any more.
    has_ended: bool = False

    def extend(self, token_ids: array) -> None:
        """Adds final tokens."""
        self.token_ids.extend(token_ids)
        self.hash = token_hash.extend(self.hash, token_ids)

    def add_features(self, offset: int, rows: bytes, row_bytes: int) -> None:
        """Adds hidden vectors of final tokens, `row_bytes` each, and forgets what is too old to be of use."""
        if self.features is None:
            self.features = Features(offset, bytearray(rows))
        else:
            self.features.add(offset, rows, row_bytes)
        end = self.features.offset + len(self.features.rows) // row_bytes
        oldest = max(self.num_prompt_tokens - MAX_NUM_PROMPT_FEATURES, end - MAX_NUM_FEATURES)
        self.features.forget_before(oldest, row_bytes)

    def remember_draft(self, source: str, draft: Draft) -> None:
        """Notes a draft, so that its rest is known later, and forgets the oldest of too many."""
        drafts = self.drafts.setdefault(source, [])
        drafts.append(draft)
        del drafts[:-MAX_NUM_DRAFTS]

    def remaining_guesses(self) -> dict[str, list[Guess]]:
        """Returns by source what is left, behind the final tokens, of drafts that agree with these."""
        rests: dict[str, list[Guess]] = {}
        for source, drafts in self.drafts.items():
            drafts[:] = [draft for draft in drafts if self._may_fit(draft)]
            rests[source] = [
                draft.guess.after(len(self.token_ids) - draft.base_length)
                for draft in drafts
                if draft.base_length <= len(self.token_ids)
            ]
        return rests

    def _may_fit(self, draft: Draft) -> bool:
        num_past = len(self.token_ids) - draft.base_length
        if num_past < 0:
            # It follows what may yet come.
            return True
        first = draft.guess.token_ids[:num_past]
        return len(first) == num_past and token_hash.extend(draft.base_hash, first) == self.hash
