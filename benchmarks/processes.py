"""The processes of a local stack, found in /proc by what they are."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.local.processes import PROC, read_stat

STOPPED = "T"


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process; `started`, in clock ticks since the machine began, tells it from a later one of its id."""

    pid: int
    parent: int
    state: str
    started: int
    # As lists of processes show it; the ranks of a group give themselves one.
    name: str

    @classmethod
    def read(cls, pid: int) -> "Process":
        """Reads what runs under an id; raises LookupError if nothing does."""
        try:
            name, fields = read_stat(pid)
        except (FileNotFoundError, ProcessLookupError):
            raise LookupError(pid) from None
        return cls(pid=pid, state=fields[0], parent=int(fields[1]), started=int(fields[19]), name=name)

    @property
    def is_stopped(self) -> bool:
        """Whether it has been sent SIGSTOP."""
        return self.state == STOPPED

    @property
    def own_bytes(self) -> int:
        """Memory of its own, mapped files left out; 0 once it has ended."""
        with suppress(OSError):
            for line in (PROC / str(self.pid) / "status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) << 10
        return 0

    def variables(self) -> dict[str, str]:
        """Returns the environment that it was started with; empty once it has ended."""
        try:
            pairs = (PROC / str(self.pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return {}
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def all_processes() -> Iterator[Process]:
    """Yields every process that has not ended."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(LookupError):
                process = Process.read(int(entry.name))
                if process.state not in "ZX":
                    yield process


def services_of(stack_pid: int) -> dict[str, Process]:
    """Returns the services that a stack runs, by their names, and the ranks of a group as `worker.RANK`.

    A service is known by the file that its output goes to. Where a worker is a group, `worker` is its agent.
    """
    below: dict[int, list[Process]] = {}
    for process in all_processes():
        below.setdefault(process.parent, []).append(process)
    found = {name: child for child in below.get(stack_pid, []) if (name := _log_of(child).stem)}
    for name, service in list(found.items()):
        for child in below.get(service.pid, []):
            if child.name.startswith("rank "):
                found[f"{name}.{child.name.removeprefix('rank ')}"] = child
    return found


def logs_of(stack_pid: int) -> dict[str, Path]:
    """Returns the file that each service of a stack logs to."""
    services = services_of(stack_pid)
    return {name: _log_of(process) for name, process in services.items() if "." not in name}


def _log_of(process: Process) -> Path:
    """Returns an empty path for a process that is none of the services, or has ended."""
    with suppress(OSError):
        path = Path(os.readlink(PROC / str(process.pid) / "fd" / "1"))
        if path.suffix == ".log":
            return path
    return Path()
