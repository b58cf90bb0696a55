"""How a process that computes steps runs and ends."""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from outrider.rpc.main import run_service


def run_worker(main: Callable[[], Awaitable[None]]) -> int:
    """Runs `main` as a service, and returns the exit status; a ConfigError has been told then."""
    try:
        run_service("worker", main)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def end_process(status: int) -> NoReturn:
    """Ends this process at once: a step that is stuck, or a child, would hold it up."""
    sys.stderr.flush()
    os._exit(status)
