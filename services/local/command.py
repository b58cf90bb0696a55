"""How the commands that run the local stack talk to the user, and end."""

import asyncio
import sys
from collections.abc import Coroutine

from services.local.child import StartError


def report(line: str) -> None:
    """Tells the user how the stack fares."""
    sys.stderr.write(f"outrider: {line}\n")


def run(work: Coroutine[None, None, None]) -> int:
    """Runs `work` and returns the exit status: 2, after one line, if the stack cannot start."""
    status = 0
    try:
        asyncio.run(work)
    except* KeyboardInterrupt:
        status = 130
    except* StartError as errors:
        report(str(_first_of(errors)))
        status = 2
    return status


def _first_of(errors: BaseExceptionGroup) -> BaseException:
    error = errors.exceptions[0]
    return _first_of(error) if isinstance(error, BaseExceptionGroup) else error
