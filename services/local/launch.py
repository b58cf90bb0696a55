"""Becomes one service that dies with its parent: `python -m services.local.launch MODULE PARENT_PID`.

Done in the child itself: to run Python between fork and exec is unsafe beside gRPC's threads.
"""

import runpy
import sys

from outrider.rpc.parent import die_with_parent

if __name__ == "__main__":
    _, module, parent_pid = sys.argv
    die_with_parent(int(parent_pid))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
