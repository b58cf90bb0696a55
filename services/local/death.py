"""Ties a child process's life to its parent's."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with_parent() -> Callable[[], None] | None:
    """Returns what a child must run before it becomes its program, so that it dies when this process does.

    None where the system has no such thing: there a killed parent leaves its children behind.
    """
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec little may be done safely.
    libc, parent = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind
