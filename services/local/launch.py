"""Becomes one service that dies with its parent: `python -m services.local.launch MODULE PARENT_PID`.

Done in the child itself: to run Python between fork and exec is unsafe beside gRPC's threads.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Has the system kill this process when its parent dies, or ends it now if that has happened already.

    Only Linux can: elsewhere a killed parent leaves its children behind.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    _, module, parent_pid = sys.argv
    die_with_parent(int(parent_pid))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
