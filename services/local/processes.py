"""The processes of this machine, as Linux shows them in /proc; elsewhere nothing is seen."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
# As the kernel calls them: stopped by a signal, and by a debugger.
_STOPPED = frozenset("Tt")


def family(pid: int) -> list[int]:
    """Returns a process and all that descend from it, parents first."""
    found = [pid]
    for member in found:
        found += _children(member)
    return found


def _children(pid: int) -> Iterator[int]:
    # A process is listed with the thread that started it, which may end meanwhile.
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())


def any_stopped(pid: int) -> bool:
    """Whether a process or one that descends from it is stopped, and so will not get on by itself."""
    return any(_state(member) in _STOPPED for member in family(pid))


def read_stat(pid: int) -> tuple[str, list[str]]:
    """Returns a process's name, and what is told of it from its state on; raises OSError if it is gone."""
    # The name in brackets may hold anything.
    before, _, after = (PROC / str(pid) / "stat").read_text().rpartition(")")
    return before.partition("(")[2], after.split()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return read_stat(pid)[1][0]
    return ""


def kill_family(pid: int) -> None:
    """Kills a process and all that descend from it: a group's ranks have sessions of their own."""
    for member in family(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
