"""Raw results under docs/results: the report is made of them and can be made again without measuring."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / "docs" / "results"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a benchmark found, by which command, where and when."""

    command: str
    machine: str
    day: str
    rows: Sequence[Mapping[str, Any]]


def processor() -> str:
    """Returns the processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine()
    )


def host() -> str:
    """Describes the machine that runs this."""
    return f"{processor()}, {os.cpu_count()} cores, torch {version('torch')}"


def command() -> str:
    """Returns the command that runs this process, as it would be typed."""
    module = (sys.modules["__main__"].__spec__ or sys.modules[__name__].__spec__).name  # type: ignore[union-attr]
    return shlex.join(["python", "-m", module.removesuffix(".__main__"), *sys.argv[1:]])


def save(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    directory: Path = DIRECTORY,
    *,
    machine: str | None = None,
) -> None:
    """Writes a result of the module that runs, over the one before; `machine` is another than the host."""
    _write(name, command(), rows, directory, machine)


def _write(
    name: str,
    command: str,
    rows: Sequence[Mapping[str, Any]],
    directory: Path,
    machine: str | None = None,
) -> None:
    result = Result(command=command, machine=machine or host(), day=date.today().isoformat(), rows=rows)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(_text(result))


def _text(result: Result) -> str:
    """A line for each row, so that a change of one shows as one."""
    head = json.dumps(asdict(replace(result, rows=[])), indent=1)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result.rows)
    return head.removesuffix("[]\n}") + f"[\n{rows}\n ]\n}}\n"


def load(name: str, directory: Path = DIRECTORY) -> Result | None:
    """Reads a result; None if there is none."""
    path = directory / f"{name}.json"
    return Result(**json.loads(path.read_text())) if path.exists() else None


def capture(name: str, module: str, arguments: Sequence[str], directory: Path = DIRECTORY) -> None:
    """Runs a benchmark that prints its rows as JSON objects, and writes them as a result."""
    line = [sys.executable, "-m", module, *arguments]
    output = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    _write(name, shlex.join(["python", "-m", module, *arguments]), list(_objects(output)), directory)


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yields JSON objects that follow one another."""
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        value, position = decoder.raw_decode(text, position)
        yield value
