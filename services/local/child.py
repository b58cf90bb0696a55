"""One service as a supervised process: started, watched, started again when it dies, stopped."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

Report = Callable[[str], None]

SHORTEST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
# A process that lived this long is taken to have been well.
WELL_AFTER_SECONDS = 30.0
POLL_SECONDS = 0.1


class StartError(Exception):
    """The stack cannot start; the message is one line for the user."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run: the service's name, its environment beside our own, and where it listens."""

    service: str
    environment: Mapping[str, str]
    address: str
    http_url: str

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
        self._log_path = log_path
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._has_served = False
        self._stopping = False
        self._wake = asyncio.Event()

    async def supervise(self) -> None:
        """Runs the program again and again; raises StartError if it ends before it ever served."""
        pause = SHORTEST_PAUSE_SECONDS
        while not self._stopping:
            began = time.monotonic()
            self._process = await self._spawn()
            if self._stopping:
                self._process.kill()
            status = await self._process.wait()
            if self._stopping:
                return
            if not self._has_served:
                raise StartError(self._why(status))
            pause = SHORTEST_PAUSE_SECONDS if time.monotonic() - began > WELL_AFTER_SECONDS else pause
            self._report(f"{self.program.service} ended ({_cause(status)}); starts again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log() as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.local.launch",
                f"services.{self.program.service}",
                str(os.getpid()),
                env=os.environ | self.program.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches us alone: we stop the services in their order.
                start_new_session=True,
            )

    def _log(self) -> contextlib.AbstractContextManager[IO[str]]:
        return contextlib.nullcontext(sys.stderr) if self._log_path is None else self._log_path.open("a")

    def _why(self, status: int) -> str:
        """Returns the process's own last word, which for a wrong setting names it."""
        reason = (
            f"{self.last_event()} (log: {self._log_path})" if self._log_path else "its messages are above"
        )
        return f"{self.program.service} ended ({_cause(status)}): {reason}"

    def last_event(self) -> str:
        """Returns the latest line of the log; of a JSON line, the event and what an exception says."""
        record = _record(line := self._last_line())
        if "event" not in record:
            return line
        return ": ".join([record["event"], *record.get("exception", "").strip().splitlines()[-1:]])

    @property
    def is_failing(self) -> bool:
        """Whether its latest line says why it ends, which `supervise` will report."""
        line = self._last_line()
        return (
            line.startswith(f"outrider {self.program.service}: ") or _record(line).get("level") == "critical"
        )

    def _last_line(self) -> str:
        if self._log_path is None or not self._log_path.exists():
            return ""
        lines = self._log_path.read_text(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def wait_until_serving(self, on_wait: Callable[[], None]) -> None:
        """Returns when health says so; calls `on_wait` now and then until it does."""
        while not await asyncio.to_thread(_is_serving, self.program.http_url):
            on_wait()
            await asyncio.sleep(POLL_SECONDS)
        self._has_served = True

    async def stop(self, patience_seconds: float) -> None:
        """Asks the process to end and, when the patience is over, kills it."""
        self._stopping = True
        self._wake.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), patience_seconds)
        except TimeoutError:
            self._report(f"{self.program.service} does not end; killed")
            process.kill()
            await process.wait()


def _is_serving(url: str) -> bool:
    """Asks by HTTP, where no service wants to see a certificate; whose its own is does not matter here."""
    scheme, _, address = url.partition("://")
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, timeout=1, context=context)
    else:
        connection = http.client.HTTPConnection(address, timeout=1)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def _record(line: str) -> dict[str, str]:
    """Returns what a line of JSON says; nothing for another line."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _cause(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name
