"""The local stack as benchmarks start it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.settings import DEFAULT_MODEL, Settings
from services.local.stack import Stack


@asynccontextmanager
async def stack(model: Path = DEFAULT_MODEL) -> AsyncIterator[Stack]:
    """Yields a stack on free ports once it serves."""
    async with Stack(Settings(model=model, grpc_port=0, http_port=0), report=_say) as running:
        await running.wait_until_ready()
        yield running


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
