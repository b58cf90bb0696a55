"""The drafter's configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from outrider.rpc.config import load_config
from outrider.rpc.server import Listen

MIN_MEMORY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings, read from OUTRIDER_DRAFTER_*."""

    # A stream of a scheduler never ends by itself, and losing it costs no token: nothing to wait for.
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50054, http_port=9104, drain_seconds=1))
    # For the texts of all tenants and of running sequences together.
    memory_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_MEMORY_BYTES}, is {self.memory_bytes}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the environment. Raises ConfigError naming a wrong variable."""
        return load_config(cls, "OUTRIDER_DRAFTER", environ)
