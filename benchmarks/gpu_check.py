"""Checks and measures the kernels on a GPU, in under eight minutes, and groups of ranks where there are more.

    python -m benchmarks.gpu_check [--part NAME ...] [--tiny]

It needs this repository, torch, numpy, safetensors and Triton. Each part is a
process of its own: one that fails, hangs or breaks the device is reported and hides no other. Prints every
figure, with PASS or MISS where there is a target, and writes docs/results/gpu_<card>.json. --tiny runs the
same code in Triton's interpreter, without a GPU: its figures mean nothing and are not kept.
"""

import argparse
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from time import perf_counter
from typing import Any

from benchmarks import results
from benchmarks.gpu.finding import Finding, table

# Seconds that each may take, of which compiling is the most.
PARTS: Mapping[str, int] = {
    "card": 20,
    "correctness": 90,
    "bits": 90,
    "experts": 60,
    "attention": 60,
    "sampling": 30,
    "model_slice": 110,
    "ranks": 400,  # on one GPU a few seconds: there is no group
}
INTERPRETER_SLOWER = 10


def main() -> int:
    """Runs parts, prints and keeps what they find, and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="all if left out")
    parser.add_argument("--tiny", action="store_true", help="run the code, in the interpreter")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        # Read when kernels are imported, here and in the parts' processes.
        os.environ["TRITON_INTERPRET"] = "1"
    if arguments.inside:
        run_inside(arguments.inside, is_tiny=arguments.tiny)
        return 0
    if not arguments.tiny:
        from benchmarks.gpu.bench import require_gpu

        require_gpu()
    findings: list[Finding] = []
    for part in arguments.part or PARTS:
        findings += run(part, is_tiny=arguments.tiny)
        if not arguments.tiny:
            keep(findings)
    print(table(findings))
    return 1 if any(finding.is_reached is False for finding in findings) else 0


def run(part: str, *, is_tiny: bool) -> Iterator[Finding]:
    """Yields what a part finds in a process of its own, and whether it came to its end in time."""
    line = [sys.executable, "-m", "benchmarks.gpu_check", "--inside", part, *(["--tiny"] if is_tiny else [])]
    start = perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=results.ROOT) as process:
        timer = threading.Timer(PARTS[part] * (INTERPRETER_SLOWER if is_tiny else 1), process.kill)
        timer.start()
        assert process.stdout is not None
        for text in process.stdout:
            finding = parsed(text)
            if finding is None:
                print(f"{part}: not a finding: {text.rstrip()}", flush=True)
                continue
            print(f"{finding.part}: {finding.name}: {finding.value:.4g} {finding.unit}", flush=True)
            yield finding
        status = process.wait()
        timer.cancel()
    took = perf_counter() - start
    name = "finished" if status == 0 else f"ended with status {status}"
    yield Finding(part=part, name=name, value=took, unit="s", target="all of it", is_reached=status == 0)


def parsed(line: str) -> Finding | None:
    """Returns the finding on a line; None on what a library printed, or a process cut short."""
    try:
        return Finding.from_line(line)
    except (ValueError, TypeError):
        return None


def run_inside(part: str, *, is_tiny: bool) -> None:
    """Runs a part here and prints each finding as a line."""
    from benchmarks.gpu.bench import Bench

    bench = Bench.in_interpreter() if is_tiny else Bench.on_gpu()
    for finding in import_module(f"benchmarks.gpu.{part}").measure(bench):
        print(finding.line, flush=True)


def keep(findings: Sequence[Finding]) -> None:
    """Writes the findings under the card's name, over those of the same parts before."""
    import torch

    card = torch.cuda.get_device_name()
    name = re.sub(r"\W+", "_", card.lower().removeprefix("nvidia ")).strip("_")
    where = f"{card}, torch {version('torch')}, triton {version('triton')}"
    before = results.load(f"gpu_{name}")
    results.save(f"gpu_{name}", merged(before.rows if before else (), findings), machine=where)


def merged(rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> list[Mapping[str, Any]]:
    """Returns rows with all of a part's replaced where the part was run again, in the order of PARTS."""
    again = {finding.part for finding in findings}
    kept = [row for row in rows if row["part"] in PARTS.keys() - again]
    return sorted([*kept, *(f.as_row() for f in findings)], key=lambda row: list(PARTS).index(row["part"]))


if __name__ == "__main__":
    sys.exit(main())
