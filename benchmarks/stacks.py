"""The local stack as benchmarks start it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.settings import DEFAULT_MODEL, DEFAULT_SOURCES, Settings
from services.local.stack import Stack


@asynccontextmanager
async def stack(
    model: Path = DEFAULT_MODEL,
    *,
    drafter: tuple[str, ...] = DEFAULT_SOURCES,
    state: Path | None = None,
    num_ranks: int = 1,
    num_pairs: int = 1,
) -> AsyncIterator[Stack]:
    """Yields a stack on free ports once it serves; what is learnt is kept in `state`, if there is one."""
    settings = Settings(
        model=model,
        drafter=drafter,
        state=state,
        num_ranks=num_ranks,
        num_pairs=num_pairs,
        grpc_port=0,
        http_port=0,
    )
    async with Stack(settings, report=say) as running:
        await running.wait_until_ready()
        yield running


def say(line: str) -> None:
    """Tells how a stack fares, beside the results on standard output."""
    sys.stderr.write(f"{line}\n")
