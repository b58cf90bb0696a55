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

ROOT = Path(__file__).parents[1]
SERVICES = ("worker", "drafter", "scheduler", "gateway")
# On free ports, and keeping nothing: options that follow have the last word.
ANYWHERE = ("--grpc-port", "0", "--http-port", "0", "--state", "none")


class RunningStack:
    """A stack that serves."""

    def __init__(self, process: subprocess.Popen[str], target: str, http: str) -> None:
        self.process = process
        self.target = target
        self.http = http

    def pid(self, service: str) -> int:
        """Returns the process id of a service; raises LookupError while it does not run."""
        for pid, command in children_of(self.process.pid):
            if f"services.{service}" in command:
                return pid
        raise LookupError(service)

    def pids(self) -> dict[str, int]:
        """Returns the process ids of the services that run."""
        found = {}
        for service in SERVICES:
            with suppress(LookupError):
                found[service] = self.pid(service)
        return found

    def metrics_address(self, service: str) -> str:
        """Returns HOST:PORT of a service's own HTTP side, read from its environment."""
        variables = (Path("/proc") / str(self.pid(service)) / "environ").read_text().split("\0")
        values = {name: value for name, _, value in (variable.partition("=") for variable in variables)}
        return f"127.0.0.1:{values[f'OUTRIDER_{service.upper()}_HTTP_PORT']}"

    def log(self, service: str) -> str:
        """Returns what a service has written since the stack began."""
        return (Path("/proc") / str(self.pid(service)) / "fd" / "1").resolve().read_text()

    def kill(self, service: str) -> None:
        """Kills a service as the kernel would; the stack starts it again."""
        os.kill(self.pid(service), signal.SIGKILL)

    def restart(self, service: str, *, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends a service and returns when the stack has started it again."""
        before = self.pid(service)
        os.kill(before, number)
        while self.pids().get(service, before) == before:
            time.sleep(0.05)


def children_of(parent: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the process id and command line of each child, read from /proc."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if int(fields[1]) == parent:
                yield int(entry.name), command


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
