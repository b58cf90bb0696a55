"""What `make` does when the part in C++, or how it is built, has changed."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name", ["setup.py", "compiler.py", "pyproject.toml", "src/suffix", "src/suffix/index.h"]
)
def test_a_change_has_it_compiled_anew_with_nothing_of_the_build_before(name: str) -> None:
    command = ["make", "--dry-run", f"--what-if=native/{name}", "setup"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (building,) = [place for place, line in enumerate(lines) if line.endswith("./native")]
    assert any(line.startswith("rm -rf native/build") for line in lines[:building])
