"""The sources that are configured, quick ones first."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from outrider.rpc.config import ConfigError
from services.drafter.config import PREFIX, Config
from services.drafter.lane import Lane
from services.drafter.memory import SuffixMemory
from services.drafter.suffix_source import SuffixSource


@dataclass(slots=True)
class Sources:
    """Lanes to sources, and the elements of a hidden vector for the one that wants such; 0: none does."""

    lanes: list[Lane] = field(default_factory=list)
    feature_size: int = 0


def load_sources(config: Config, memory: SuffixMemory | None) -> Sources:
    """Loads what is configured. Raises ConfigError naming the setting that is wrong."""
    sources = Sources()
    if "suffix" in config.sources and memory is not None:
        sources.lanes.append(Lane(SuffixSource(memory)))
    # Head and model compute in one thread, one call at a time.
    executor, turn = ThreadPoolExecutor(1, "compute"), asyncio.Lock()
    settings = {"kv_cache_bytes": config.kv_cache_bytes, "num_threads": config.num_threads}
    if "head" in config.sources and config.head_dir is not None and config.target_dir is not None:
        # torch is imported only where something computes with it.
        with _needed_by("head"):
            from services.drafter.head_source import HeadSource

        head = HeadSource.load(config.head_dir, config.target_dir, executor=executor, **settings)
        sources.feature_size = head.feature_size
        sources.lanes.append(Lane(head, turn))
    if "model" in config.sources and config.model_dir is not None and config.target_dir is not None:
        with _needed_by("model"):
            from services.drafter.model_source import ModelSource

        model = ModelSource.load(config.model_dir, config.target_dir, executor=executor, **settings)
        sources.lanes.append(Lane(model, turn))
    return sources


@contextmanager
def _needed_by(source: str) -> Iterator[None]:
    """Names the source that needs a package which is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = (
            f"{PREFIX}_SOURCES: {source} needs {error.name}, which is not installed (image: EXTRAS=model)"
        )
        raise ConfigError(message) from None
