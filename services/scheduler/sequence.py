"""A sequence: the token ids of one request in flight, its counters and its block table."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from outrider import block_hash, token_hash
from outrider.rpc.errors import OutriderError
from outrider.v1 import sampling_pb2
from services.scheduler.controller import Record

if TYPE_CHECKING:
    from services.scheduler.events import Outbox
    from services.scheduler.tracing import Trace


class SequenceState(Enum):
    """Where a sequence is: it waits without blocks, runs with blocks, or has ended."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class FinishReason(Enum):
    """Why a sequence ended without an error."""

    STOP = "stop"
    LENGTH = "length"
    # The gateway wants no more of it.
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Tokens guessed to follow the sequence while it has this length.

    The confidences say of each token how likely it is right if those before it are.
    """

    base_length: int
    token_ids: tuple[int, ...]
    confidences: tuple[float, ...]
    source: str
    match_length: int = 0


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens verified and found right."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request in flight: its tokens, how far they are computed, and the blocks that hold them.

    |-- num_computed_tokens --|-- known, to compute --|-- draft --|
    |-------------- num_tokens = len(token_ids) ------|

    The parameters are the gateway's message, passed on to the group unread.
    """

    id: int
    client_id: int
    request_id: str
    tenant: str
    tenant_weight: float
    priority: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_resumed_tokens: int
    params: sampling_pb2.SequenceParams
    stop_token_ids: frozenset[int]
    max_num_tokens: int
    max_num_draft_tokens: int
    outbox: "Outbox"
    trace: "Trace"
    record: Record
    phase_marks: Mapping[int, str]  # tokens behind which a phase begins

    state: SequenceState = SequenceState.WAITING
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    phase: str = "text"  # of the tokens to come
    sources: tuple[str, ...] | None = None  # whose drafts pay now; None: nobody has looked
    offers: dict[str, Draft] = field(default_factory=dict)  # drafts for the next step by source
    end: FinishReason | OutriderError | None = None

    num_cached_tokens: int | None = None  # of the prompt; None until it first runs
    num_charged_tokens: int = 0  # rows below this were charged to the tenant, or never will be
    is_announced: bool = False  # whether the gateway knows that it runs
    num_announced_tokens: int = 0  # tokens the gateway has been sent
    num_blocks_known_to_group: int = 0  # blocks of the table that the group knows
    num_published_blocks: int = 0  # blocks of the table that the prefix cache knows
    is_known_to_group: bool = False
    unsent_logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)

    num_steps: int = 0
    num_preemptions: int = 0
    drafts_by_source: dict[str, DraftCounts] = field(default_factory=dict)

    _block_hashes: list[bytes] = field(default_factory=list)
    _token_hash: int = token_hash.EMPTY
    _num_hashed_tokens: int = 0

    def __post_init__(self) -> None:
        """A resumed sequence has sent its old tokens before; the last mark says in which phase it is."""
        self.num_announced_tokens = self.num_prompt_tokens + self.num_resumed_tokens
        marks = self.phase_marks
        self.phase = next((marks[token] for token in reversed(self.token_ids) if token in marks), self.phase)

    @property
    def num_tokens(self) -> int:
        """All tokens known: prompt and output."""
        return len(self.token_ids)

    @property
    def num_tokens_to_compute(self) -> int:
        """Known tokens that are not in the blocks yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def wants_draft(self) -> bool:
        """Whether the next step chooses tokens and a draft could be used."""
        return (
            self.state is SequenceState.RUNNING
            and self.num_tokens_to_compute == 1
            and self.num_useful_draft_tokens > 0
        )

    @property
    def num_useful_draft_tokens(self) -> int:
        """The longest draft worth verifying: the step adds one token of its own behind it."""
        return min(self.max_num_draft_tokens, self.max_num_tokens - len(self.token_ids) - 1)

    @property
    def token_hash(self) -> int:
        """The hash of all tokens, extended by those that came since it was last asked for."""
        if self._num_hashed_tokens < len(self.token_ids):
            self._token_hash = token_hash.extend(self._token_hash, self.token_ids[self._num_hashed_tokens :])
            self._num_hashed_tokens = len(self.token_ids)
        return self._token_hash

    def block_hashes(self, block_size: int, num_blocks: int) -> list[bytes]:
        """Returns the prefix hashes of the first full blocks; each covers tenant and all tokens before."""
        block_hash.extend(self._block_hashes, self.tenant, self.token_ids, block_size, num_blocks)
        return self._block_hashes[:num_blocks]

    def commit(self, token_ids: Tokens[int], *, is_grammar_complete: bool = False) -> int:
        """Appends output tokens up to the one that ends the sequence; returns how many were taken.

        Where the output ends depends on the tokens alone, not on how many arrive at once. A grammar that is
        complete ends it behind them, be there none: a resumed output may have been complete before.
        """
        known, stop_token_ids, marks = self.token_ids, self.stop_token_ids, self.phase_marks
        num_left = self.max_num_tokens - len(known)
        for count, token_id in enumerate(token_ids, 1):
            known.append(token_id)
            if token_id in marks:
                self.phase = marks[token_id]
            if token_id in stop_token_ids:
                self.end = FinishReason.STOP
                return count
            if count >= num_left:
                self.end = FinishReason.LENGTH
                return count
        if is_grammar_complete:
            self.end = FinishReason.STOP
        return len(token_ids)

    def count_draft(self, source: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Notes the outcome of one verified draft."""
        counts = self.drafts_by_source.setdefault(source, DraftCounts())
        counts.num_draft_tokens += num_draft_tokens
        counts.num_accepted_tokens += num_accepted_tokens

    def set_back(self) -> None:
        """Forgets everything computed and keeps the tokens: the sequence waits to be computed again."""
        self.state = SequenceState.WAITING
        self.num_computed_tokens = 0
        self.block_table = []
        self.num_blocks_known_to_group = 0
        self.num_published_blocks = 0
        self.is_known_to_group = False
        self.num_preemptions += 1
