"""The services together: started in order, watched, stopped."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from services.local.child import Child, Report
from services.local.programs import DRAIN_SECONDS, programs
from services.local.settings import Settings
from services.local.state import Lock, make_private

# The drain time, and some for a process to clean up on a busy machine.
PATIENCE_SECONDS = DRAIN_SECONDS + 8


class Stack:
    """Runs the services while its context is open. Leaving it leaves no process behind."""

    def __init__(self, settings: Settings, *, report: Report, verbose: bool = False) -> None:
        """`verbose`: the services log to our stderr, else to files in `log_directory`."""
        settings.check()
        found = programs(settings)
        for directory in settings.state_directories:
            make_private(directory)
        self._lock = Lock(settings.state) if settings.state else None
        self._report = report
        self.log_directory = None if verbose else Path(tempfile.mkdtemp(prefix="outrider-"))
        self.children = {
            program.name: Child(program, log_path=self._log_path(program.name), report=report)
            for program in found
        }
        self.grpc_address = found[-1].address
        self.http_url = found[-1].http_url
        self._tasks = asyncio.TaskGroup()

    def _log_path(self, name: str) -> Path | None:
        return self.log_directory / f"{name}.log" if self.log_directory else None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._report(f"starts {', '.join(self.children)}")
        overridden = [name for child in self.children.values() for name in child.program.overridden]
        for name in dict.fromkeys(overridden):
            self._report(f"{name} is set by the stack; yours is not used")
        for child in self.children.values():
            self._tasks.create_task(child.supervise())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # The gateway first, for it lets answers end that need the others.
            *others, gateway = self.children.values()
            await gateway.stop(PATIENCE_SECONDS)
            async with asyncio.TaskGroup() as stopping:
                for child in others:
                    stopping.create_task(child.stop(PATIENCE_SECONDS))
        finally:
            await self._tasks.__aexit__(kind, error, traceback)
            if self._lock is not None:
                self._lock.release()
        # Kept after an error: the logs say why.
        if self.log_directory is not None:
            shutil.rmtree(self.log_directory, ignore_errors=True)

    async def wait_until_ready(self) -> None:
        """Returns when every service serves; reports each as it does, and what a slow one is busy with."""
        began = time.monotonic()
        for child in self.children.values():
            progress = _Progress(child, self._report)
            await child.wait_until_serving(progress.tell)
            self._report(f"{child.program.name} serves after {time.monotonic() - began:.1f} s")


class _Progress:
    """Reports what a child is busy with: every two seconds, if there is news."""

    def __init__(self, child: Child, report: Report) -> None:
        self._child = child
        self._report = report
        self._told_at = time.monotonic()
        self._told = ""

    def tell(self) -> None:
        if time.monotonic() - self._told_at < 2:
            return
        self._told_at = time.monotonic()
        event = self._child.log.last_event
        if event and event != self._told and not self._child.log.is_failing:
            self._report(f"{self._child.program.name}: {event}")
            self._told = event
