"""How a process that computes steps runs and ends."""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from outrider.rpc.main import run_service


def run_worker(main: Callable[[], Awaitable[None]]) -> NoReturn:
    """Runs `main` as a service, and ends at once when it has: a step that is stuck would hold it up."""
    try:
        run_service("worker", main)
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
