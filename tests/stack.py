"""The local stack as its user starts it: `python -m services` in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from benchmarks.processes import logs_of, services_of

ROOT = Path(__file__).parents[1]
SERVICES = ("worker", "drafter", "scheduler", "gateway")
# On free ports, and keeping nothing: options that follow have the last word.
ANYWHERE = ("--grpc-port", "0", "--http-port", "0", "--state", "none")


class RunningStack:
    """A stack that serves: services are named as worker, worker-2, and the ranks of a group as worker.0."""

    def __init__(self, process: subprocess.Popen[str], target: str, http: str) -> None:
        self.process = process
        self.target = target
        self.http = http

    def pid(self, name: str) -> int:
        """Returns the process id of a service or a rank; raises LookupError while it does not run."""
        return services_of(self.process.pid)[name].pid

    def pids(self) -> dict[str, int]:
        """Returns the process ids of all that run."""
        return {name: process.pid for name, process in services_of(self.process.pid).items()}

    def metrics_address(self, service: str) -> str:
        """Returns HOST:PORT of a service's own HTTP side, read from its environment."""
        values = services_of(self.process.pid)[service].variables()
        return f"127.0.0.1:{values[f'OUTRIDER_{service.upper()}_HTTP_PORT']}"

    def suffix_of(self, scheduler: str) -> str:
        """Returns what the names of a pair end with, found by its scheduler's address."""
        for name, process in services_of(self.process.pid).items():
            port = process.variables().get("OUTRIDER_SCHEDULER_GRPC_PORT", "none")
            if name.startswith("scheduler") and scheduler.endswith(f":{port}"):
                return name.removeprefix("scheduler")
        raise LookupError(scheduler)

    def log(self, service: str) -> str:
        """Returns what a service has written since the stack began."""
        return logs_of(self.process.pid)[service].read_text()

    def send(self, number: signal.Signals, name: str) -> int:
        """Sends a service or a rank a signal and returns its process id."""
        os.kill(pid := self.pid(name), number)
        return pid

    def kill(self, name: str) -> None:
        """Kills a process as the kernel would; the stack starts it again."""
        self.send(signal.SIGKILL, name)

    def restart(self, name: str, *, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends a process by a signal and returns when it has been started again."""
        before = self.send(number, name)
        while self.pids().get(name, before) == before:
            time.sleep(0.05)


@contextmanager
def running_stack(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[RunningStack]:
    """Starts a stack on free ports, waits until it serves, and stops it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "services", *ANYWHERE, *arguments],
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        target, http = _addresses(process.stdout)
        yield RunningStack(process, target, http)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _addresses(output: IO[str]) -> tuple[str, str]:
    """Reads the two lines that a ready stack prints, such as `gRPC  127.0.0.1:50051`."""
    found: dict[str, str] = {}
    for line in output:
        kind, _, address = line.strip().partition("  ")
        found[kind] = address
        if kind.startswith("ready"):
            return found["gRPC"], found["HTTP"].split()[0]
    raise AssertionError("the stack ended before it was ready; its messages are above")


def wait_until_gone(processes: Mapping[str, int]) -> None:
    """Returns when none of the processes is left; the test's own limit ends the wait."""
    for pid in processes.values():
        with suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(0.05)
