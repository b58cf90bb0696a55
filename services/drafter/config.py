"""The drafter's configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from outrider.rpc.config import ConfigError, load_config
from outrider.rpc.server import Listen
from services.drafter.messages import SOURCES

PREFIX = "OUTRIDER_DRAFTER"
MIN_BYTES = 1 << 20
# What each source must be told where to find.
NEEDED_SETTINGS = {"suffix": (), "model": ("model_dir", "target_dir"), "head": ("head_dir", "target_dir")}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings, read from OUTRIDER_DRAFTER_*."""

    # A stream of a scheduler never ends by itself, and losing it costs no token: nothing to wait for.
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50054, http_port=9104, drain_seconds=1))
    # Some of suffix, model, head.
    sources: tuple[str, ...] = ("suffix",)

    # For the texts of all tenants and of running sequences together.
    memory_bytes: int = 256 << 20
    # Whether tenants see what others' texts suggest.
    share_memory: bool = False
    # Where the memory is kept across restarts. Unset: it is not.
    snapshot_dir: Path | None = None
    snapshot_seconds: float = 300.0
    # Older texts are not loaded.
    snapshot_max_age_days: float = 30.0

    # The draft model.
    model_dir: Path | None = None
    # The draft head, which shares the embedding of the model that it was trained for.
    head_dir: Path | None = None
    # The served model: of it the draft model needs no more than config.json, to compare vocabularies.
    target_dir: Path | None = None
    # Threads of draft model and head.
    num_threads: int = 1
    # Room for the keys and values of each of the two, in bytes.
    kv_cache_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Raises ConfigError naming the first variable that is out of range."""
        self._check_sources()
        for name, least in (("memory_bytes", MIN_BYTES), ("kv_cache_bytes", MIN_BYTES), ("num_threads", 1)):
            if getattr(self, name) < least:
                raise _wrong(name, f"must be at least {least}, is {getattr(self, name)}")
        for name in ("snapshot_seconds", "snapshot_max_age_days"):
            if not getattr(self, name) > 0:
                raise _wrong(name, f"must be above 0, is {getattr(self, name):g}")

    def _check_sources(self) -> None:
        if not self.sources or len(set(self.sources)) != len(self.sources):
            raise _wrong("sources", f"must name sources once each, is {','.join(self.sources)!r}")
        for source in self.sources:
            if source not in SOURCES:
                raise _wrong("sources", f"there is no {source!r}; there are {', '.join(SOURCES)}")
            for name in NEEDED_SETTINGS[source]:
                if (directory := getattr(self, name)) is None:
                    raise _wrong(name, f"must be set, as the source {source} needs it")
                if not directory.is_dir():
                    raise _wrong(name, f"{directory} is no directory")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the environment. Raises ConfigError naming a wrong variable."""
        return load_config(cls, PREFIX, environ)


def _wrong(name: str, reason: str) -> ConfigError:
    return ConfigError(f"{PREFIX}_{name.upper()}: {reason}")
