"""Checks that the committed stubs are what the contracts generate: `python -m tests.stubs_are_current`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOS = ROOT / "protos"
# As the Makefile's target `protos` has them.
OUTPUTS = ("--python_out", "--pyi_out", "--grpc_python_out", "--mypy_grpc_out")


def generate(directory: Path) -> None:
    """Generates all stubs below `directory`; raises SystemExit if a contract does not compile."""
    files = [str(path) for path in sorted(PROTOS.glob("outrider/v1/*.proto"))]
    outputs = [f"{output}={directory}" for output in OUTPUTS]
    # The plugin lies beside the interpreter, which the search path need not hold.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    result = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *files],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise SystemExit(result.stderr)


def differing(generated: Path, committed: Path) -> Iterator[str]:
    """Yields the stubs that are missing on one side, or differ."""
    names = {
        path.name for folder in (generated, committed) for path in folder.glob("*_pb2*.py*") if path.is_file()
    }
    for name in sorted(names):
        sides = [folder / name for folder in (generated, committed)]
        if not all(side.exists() for side in sides) or sides[0].read_bytes() != sides[1].read_bytes():
            yield name


def main() -> int:
    """Prints each stub that is stale; returns the exit status."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        stale = list(differing(Path(directory) / "outrider" / "v1", ROOT / "outrider" / "v1"))
    for name in stale:
        sys.stderr.write(f"outrider/v1/{name} differs from what protos/ generates: run make protos\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
