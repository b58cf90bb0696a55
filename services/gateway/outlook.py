"""What this gateway knows of a pair's load and prefix cache: by its reports, and by what was sent there."""

import time
from dataclasses import dataclass
from typing import Self

from outrider.v1 import load_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.choice import Prospect
from services.gateway.prefixes import PrefixMemory
from services.gateway.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Group:
    """What the group behind a scheduler is."""

    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int
    block_size: int

    @classmethod
    def from_proto(cls, message: pb.Opened) -> Self:
        """Reads a message."""
        return cls(
            model=message.model,
            numerics_id=message.numerics_id,
            max_model_len=message.max_model_len,
            vocab_size=message.vocab_size,
            block_size=max(1, message.block_size),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A sequence on one stream, and what was known of it when it was sent."""

    sequence: Sequence
    # Output tokens that it had.
    num_tokens: int
    block_hashes: tuple[bytes, ...]
    num_known_blocks: int
    # Of prompt and output, to be computed.
    num_tokens_left: int


class Outlook:
    """Foresees what a sequence would meet at a pair, and learns from what it met."""

    def __init__(self, *, max_num_known_blocks: int) -> None:
        self.load = load_pb2.Load()
        # Since when there is no group, on the clock of time.monotonic; None: there is one.
        self.group_away_since: float | None = None
        self._block_size = 1
        self._max_num_known_blocks = max_num_known_blocks
        self._prefixes = PrefixMemory(max_num_known_blocks)
        self._num_sent = 0
        # By the last report, and by what was sent there, began and ended since.
        self._num_requests = 0
        self._num_waiting_tokens = 0

    def begin(self, block_size: int) -> None:
        """Begins with a scheduler of whose cache nothing is known."""
        self._block_size = block_size
        self._prefixes.clear()

    def report(self, load: load_pb2.Load) -> None:
        """Takes in a report. Another group's cache is empty; no cache has more blocks than there are."""
        if load.num_groups != self.load.num_groups:
            self._prefixes.clear()
        if load.num_blocks:
            self._prefixes.resize(min(self._max_num_known_blocks, load.num_blocks))
        self.load = load
        self._num_requests = load.num_requests_running + load.num_requests_waiting
        self._num_waiting_tokens = load.num_waiting_tokens
        if load.has_group:
            self.group_away_since = None
        elif self.group_away_since is None:
            self.group_away_since = time.monotonic()

    def prospect(self, sequence: Sequence, *, num_sequences: int) -> Prospect:
        """Returns what a sequence would meet; `num_sequences` of this gateway are there already."""
        return Prospect(
            num_own_tokens=self._run(sequence).num_tokens_left,
            num_waiting_tokens=self._num_waiting_tokens,
            num_requests=max(self._num_requests, num_sequences),
            step_seconds=self.load.step_ms / 1000,
            rows_per_second=self.load.rows_per_second,
            num_sent=self._num_sent,
        )

    def send(self, sequence: Sequence) -> Run:
        """Notes that a sequence is sent there."""
        run = self._run(sequence)
        self._num_sent += 1
        self._num_requests += 1
        self._num_waiting_tokens += run.num_tokens_left
        return run

    def start(self, run: Run, num_cached_tokens: int) -> None:
        """Forgets what the group did not have any more. Of a resumed sequence it tells of the prompt only."""
        num_prompt_tokens = len(run.sequence.submission.prompt_token_ids)
        num_expected = min(run.num_known_blocks, num_prompt_tokens // self._block_size)
        if (num_found := num_cached_tokens // self._block_size) < num_expected:
            self._prefixes.forget(run.block_hashes[num_found])

    def compute(self, run: Run) -> None:
        """Notes that a sequence has had its first token there: what it began with is computed."""
        self._num_waiting_tokens = max(0, self._num_waiting_tokens - run.num_tokens_left)
        self._remember(run.sequence)

    def end(self, run: Run) -> None:
        """Notes that a sequence is not there any more, however it ended."""
        self._num_requests = max(0, self._num_requests - 1)
        if len(run.sequence.token_ids) > run.num_tokens:
            self._remember(run.sequence)
        else:
            self._num_waiting_tokens = max(0, self._num_waiting_tokens - run.num_tokens_left)

    def _remember(self, sequence: Sequence) -> None:
        """Notes its blocks: all tokens but the last are computed."""
        hashes = sequence.block_hashes(self._block_size)
        self._prefixes.add(hashes[: (sequence.num_tokens - 1) // self._block_size])

    @property
    def num_known_blocks(self) -> int:
        """Returns how many blocks are taken to be in the prefix cache."""
        return len(self._prefixes)

    def _run(self, sequence: Sequence) -> Run:
        hashes = sequence.block_hashes(self._block_size)
        # The last token is computed in any case.
        num_most = (sequence.num_tokens - 1) // self._block_size
        num_known = self._prefixes.num_known(hashes[:num_most])
        return Run(
            sequence=sequence,
            num_tokens=len(sequence.token_ids),
            block_hashes=hashes,
            num_known_blocks=num_known,
            num_tokens_left=sequence.num_tokens - num_known * self._block_size,
        )
