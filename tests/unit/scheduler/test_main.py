"""How the scheduler's process begins."""

import subprocess
import sys


def test_a_part_that_is_not_built_is_said_in_one_line() -> None:
    run_it = "runpy.run_module('services.scheduler', run_name='__main__')"
    program = f"import runpy, sys; sys.modules['outrider_native'] = None; {run_it}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = "outrider scheduler: outrider_native.controller is not installed: run make setup\n"
    assert (run.returncode, run.stderr) == (2, said)
