"""One service as a supervised process: started, watched, started again when it dies, stopped."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from services.local.liveness import LIVENESS_SECONDS, until_lifeless
from services.local.log import Log
from services.local.processes import kill_family

Report = Callable[[str], None]

# Before the next start of one that died before it served; one that served starts again at once.
SHORTEST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
POLL_SECONDS = 0.1


class StartError(Exception):
    """The stack cannot start; the message is one line for the user."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run: a service, its name in the stack, its environment beside our own, and where it listens."""

    service: str
    name: str
    environment: Mapping[str, str]
    address: str
    http_url: str
    # How long one that has served may then give no sign of life.
    silence_seconds: float = LIVENESS_SECONDS

    @property
    def overridden(self) -> Iterator[str]:
        """Yields the variables of our own environment that have another value for the service."""
        for name, value in self.environment.items():
            if os.environ.get(name, value) != value:
                yield name


class Child:
    """Keeps one program running until `stop`."""

    def __init__(self, program: Program, *, log_path: Path | None, report: Report) -> None:
        """`log_path` None: the process writes to our stderr."""
        self.program = program
        self.log = Log(log_path)
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._has_served = asyncio.Event()
        self._serves = False
        self._stopping = asyncio.Event()

    async def supervise(self) -> None:
        """Runs the program again and again; raises StartError if it ends before it ever served."""
        name, pause = self.program.name, 0.0
        while not self._stopping.is_set():
            status = await self._run()
            if self._stopping.is_set():
                return
            if not self._has_served.is_set():
                raise StartError(f"{name} ended ({_cause(status)}): {self.log.reason}")
            pause = (
                0.0 if self._serves else min(max(2 * pause, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            )
            when = f"in {pause:g} s" if pause else "at once"
            self._report(f"{name} ended ({_cause(status)}); starts again {when}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run(self) -> int:
        """Runs the program once and returns its exit status."""
        self._serves = False
        self._process = process = await self._spawn()
        if self._stopping.is_set():
            process.kill()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch(process.pid))
            status = await process.wait()
            watch.cancel()
        return status

    async def _watch(self, pid: int) -> None:
        limit = self.program.silence_seconds
        await until_lifeless(self.program.http_url, pid, limit_seconds=limit, on_serving=self._take_serving)
        self._report(f"{self.program.name} gives no sign of life; killed")
        kill_family(pid)

    def _take_serving(self) -> None:
        self._serves = True
        self._has_served.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._output() as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.local.launch",
                f"services.{self.program.service}",
                str(os.getpid()),
                env=os.environ | self.program.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches us alone: we stop the services in their order.
                start_new_session=True,
            )

    def _output(self) -> contextlib.AbstractContextManager[IO[str]]:
        return contextlib.nullcontext(sys.stderr) if self.log.path is None else self.log.path.open("a")

    async def wait_until_serving(self, on_wait: Callable[[], None]) -> None:
        """Returns when it has served; calls `on_wait` now and then until it does."""
        while not self._has_served.is_set():
            on_wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_served.wait(), POLL_SECONDS)

    async def stop(self, patience_seconds: float) -> None:
        """Asks the process to end and, when the patience is over, kills it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            # One that is stopped hears nothing else.
            process.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(process.wait(), patience_seconds)
        except TimeoutError:
            self._report(f"{self.program.name} does not end; killed")
            kill_family(process.pid)
            await process.wait()


def _cause(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
