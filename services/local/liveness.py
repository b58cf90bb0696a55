"""Whether a service lives: asked over HTTP again and again, and looked at from outside while it starts."""

import asyncio
import contextlib
import enum
from collections.abc import Callable
from http import HTTPStatus

from services.local.http_line import HttpLine
from services.local.processes import any_stopped

# One that has served and then gives no sign of life for so long is taken to be stuck.
LIVENESS_SECONDS = 2.0
# Nobody listens for so long: whoever should have started it again does not.
ABSENT_SECONDS = 30.0
STARTING_POLL_SECONDS = 0.1
POLL_SECONDS = 0.25


class Sign(enum.Enum):
    """What one wait has brought."""

    GOOD = enum.auto()
    # A bad answer, or none yet.
    NONE = enum.auto()
    # Nobody listens, as while a group's ranks are started again.
    NOBODY = enum.auto()


class Liveness:
    """What is known of one process.

    Time is counted in our own waits, each as long as it was meant to be: when we are held up ourselves it is
    not the process's fault.
    """

    def __init__(self, *, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._silent_seconds = 0.0
        self._absent_seconds = 0.0
        self._has_ever_served = False
        self.has_served = False

    @property
    def is_over(self) -> bool:
        """Whether the process is to be killed."""
        return self._silent_seconds >= self._limit_seconds or self._absent_seconds >= ABSENT_SECONDS

    @property
    def question(self) -> str:
        """What to ask: one that loads cannot be judged yet, however long it takes."""
        return "/livez" if self.has_served else "/healthz"

    @property
    def poll_seconds(self) -> float:
        """How long one wait is."""
        return POLL_SECONDS if self.has_served else STARTING_POLL_SECONDS

    def take(self, sign: Sign, *, is_stopped: bool) -> None:
        """Counts one wait. Nothing but being stopped counts against one that starts."""
        waited = self.poll_seconds
        self.has_served = sign is Sign.GOOD or (self.has_served and sign is not Sign.NOBODY)
        self._has_ever_served |= self.has_served
        is_silent = sign is not Sign.GOOD and (self.has_served or is_stopped)
        is_absent = sign is Sign.NOBODY and self._has_ever_served
        self._silent_seconds = self._silent_seconds + waited if is_silent else 0.0
        self._absent_seconds = self._absent_seconds + waited if is_absent else 0.0


async def until_lifeless(url: str, pid: int, *, limit_seconds: float, on_serving: Callable[[], None]) -> None:
    """Returns when a process gives no sign of life any more; calls `on_serving` when it begins to serve."""
    life = Liveness(limit_seconds=limit_seconds)
    with contextlib.closing(HttpLine(url)) as line:
        while not life.is_over:
            had_served = life.has_served
            await _ask(life, line, pid)
            if life.has_served and not had_served:
                on_serving()
            await asyncio.sleep(life.poll_seconds)


async def _ask(life: Liveness, line: HttpLine, pid: int) -> None:
    """Asks once, and waits for the answer until it comes or the process is given up."""
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(line.status_of(life.question))
        while not life.is_over:
            await asyncio.wait({asked}, timeout=life.poll_seconds)
            sign = _sign(asked.result()) if asked.done() else Sign.NONE
            # One that serves is asked: a stopped process that starts ranks harms nobody while they serve.
            life.take(sign, is_stopped=not life.has_served and any_stopped(pid))
            if asked.done():
                return
        asked.cancel()


def _sign(status: int | None) -> Sign:
    if status is None:
        return Sign.NOBODY
    return Sign.GOOD if status == HTTPStatus.OK else Sign.NONE
