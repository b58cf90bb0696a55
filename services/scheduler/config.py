"""The scheduler's settings, from OUTRIDER_SCHEDULER_*."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from outrider.rpc.channel import ChannelTls
from outrider.rpc.config import load_config
from outrider.rpc.server import Listen
from services.scheduler.controller import Settings

PREFIX = "OUTRIDER_SCHEDULER"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that can be set."""

    worker: str
    # Empty: no drafter.
    drafter: str = ""
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50052, http_port=9102))
    tls: ChannelTls = field(default_factory=ChannelTls)

    # Rows of one step. Unset or more than the group takes: what the group takes.
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    # The most prompt rows of one sequence in one step, so that a long prompt does not hold up the others.
    prefill_chunk: int = 512
    max_num_waiting: int = 1024
    max_num_waiting_tokens: int = 2_000_000

    # The time between two tokens of a stream that prompts beside it may stretch a step to. Unset: no limit
    # but prefill_chunk, as how much later first tokens may come for it is for the operator to say.
    inter_token_target_ms: float | None = None

    # With the model's own token a sequence then has 16 rows, which no backend cuts into more than one tile.
    max_draft_tokens: int = 15
    # A step never waits longer for drafts; how long it does is learnt.
    max_draft_wait_ms: float = 50.0
    # Whether the drafter computes on the cores that the group computes on: then its time is the step's.
    drafter_shares_cores: bool = False
    # Where what is learnt of speed and drafts is kept. Unset: it is forgotten at the end.
    state_dir: Path | None = None

    # How long health stays good and sequences are kept, and how long a new stream waits, without a group.
    group_patience_seconds: float = 30.0
    # A step takes less. One unanswered for so long is asked for again on a new stream, which costs nothing,
    # as it is not run again; and until an answer comes there is no group.
    step_patience_seconds: float = 60.0
    # A gateway that reads nothing for so long is cut off.
    gateway_patience_seconds: float = 10.0

    @property
    def controller(self) -> Settings:
        """What bounds the controller's choices."""
        target = self.inter_token_target_ms
        return Settings(
            max_num_draft_tokens=self.max_draft_tokens,
            drafter_shares_cores=self.drafter_shares_cores,
            inter_token_target_seconds=target / 1000 if target is not None else None,
            max_wait_seconds=self.max_draft_wait_ms / 1000,
        )

    def __post_init__(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        if not self.worker:
            raise ValueError("worker must be HOST:PORT")
        for name in ("max_num_seqs", "prefill_chunk", "max_num_waiting", "max_num_waiting_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < 1:
            raise ValueError(f"max_num_batched_tokens must be at least 1, is {self.max_num_batched_tokens}")
        if self.inter_token_target_ms is not None and not self.inter_token_target_ms > 0:
            raise ValueError(f"inter_token_target_ms must be positive, is {self.inter_token_target_ms:g}")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not value >= 0:
                raise ValueError(f"{item.name} must not be negative, is {value:g}")
        if not self.step_patience_seconds:
            raise ValueError("step_patience_seconds must be positive, is 0")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the environment; raises ConfigError naming the variable at fault."""
        return load_config(cls, PREFIX, environ)
