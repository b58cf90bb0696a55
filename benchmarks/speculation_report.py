"""Writes the report on speculation, docs/speculation.md, from the raw results in docs/results.

    python -m benchmarks.speculation_report [--measure all | NAME ...]
                                            [--results DIR] [--output FILE]

`--measure` runs the benchmarks first, all of them (about an hour on two cores) or those that are named.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import plots, results
from benchmarks.sections import Section, read

PATH = results.ROOT / "docs" / "speculation.md"
# Relative to the root, where benchmarks are run. The first is large and made anew each time: it is not kept.
DRAFTS = "build/benchmarks/drafts.jsonl"
COSTS = "docs/results/step_costs.json"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A benchmark to run: the module, its arguments, and whether it prints rows for us to keep."""

    module: str
    arguments: Sequence[str] = ()
    prints_rows: bool = False


STUDIES: dict[str, Study] = {
    "never_costs": Study(module="never_costs"),
    # What the draft model guesses right at any temperature, as it knows the noise, the memory alone does not.
    "never_costs_suffix": Study(
        module="never_costs",
        arguments=["--drafter", "suffix", "--kinds", "unpredictable", "--name", "never_costs_suffix"],
    ),
    "learns": Study(module="learns"),
    "caps": Study(module="caps"),
    "drafting_ahead": Study(module="drafting_ahead"),
    "step_costs": Study(module="step_costs", arguments=[COSTS]),
    "record_drafts": Study(module="record_drafts", arguments=[DRAFTS]),
    "regret": Study(module="regret", arguments=["--drafts", DRAFTS, "--costs", COSTS], prints_rows=True),
    "recorded_acceptance": Study(module="recorded_acceptance", arguments=[DRAFTS], prints_rows=True),
    "acceptance": Study(module="acceptance", prints_rows=True),
    "features": Study(module="features", prints_rows=True),
    "suffix_memory": Study(module="suffix_memory", prints_rows=True),
    "controller_time": Study(module="controller_time", prints_rows=True),
    "physics": Study(module="physics", prints_rows=True),
    "eviction": Study(module="eviction"),
    "prefill": Study(module="prefill"),
    "first_shapes": Study(module="first_shapes", prints_rows=True),
}


def measure(names: Sequence[str]) -> list[str]:
    """Runs benchmarks one after another and returns those that failed: the others have taken their time."""
    (results.ROOT / DRAFTS).parent.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name in names:
        try:
            _run(name, STUDIES[name])
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed.append(name)
    return failed


def _run(name: str, study: Study) -> None:
    sys.stderr.write(f"{name}: python -m benchmarks.{study.module} {' '.join(study.arguments)}\n")
    if study.prints_rows:
        results.capture(name, f"benchmarks.{study.module}", study.arguments)
    else:
        line = [sys.executable, "-m", f"benchmarks.{study.module}", *study.arguments]
        subprocess.run(line, check=True, cwd=results.ROOT)


def section(one: Section, directory: Path, output: Path) -> str:
    """Returns a section with its plot and its table, or that there is no result."""
    found = results.load(one.name, directory)
    if found is None:
        return f"## {one.title}\n\n{one.text}\n\nNot measured yet."
    parts = [f"## {one.title}", one.text, one.verdict(found.rows)]
    if one.name in plots.PLOTS:
        path = plots.draw(one.name, found.rows, output.parent / "plots")
        parts.append(f"![{one.title}]({path.relative_to(output.parent)})")
    parts += [one.table(found.rows), f"`{found.command}`, {found.day}, on {found.machine}."]
    return "\n\n".join(part for part in parts if part)


def report(directory: Path, output: Path) -> str:
    """Returns the whole report on the results in a directory, with its plots beside `output`."""
    head, sections = read()
    return "\n\n".join([head, *(section(one, directory, output) for one in sections)]) + "\n"


def main() -> None:
    """Measures what is asked for and writes the report; the exit status says whether all was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", nargs="+", choices=["all", *STUDIES], default=[])
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    parser.add_argument("--output", type=Path, default=PATH)
    arguments = parser.parse_args()
    failed = measure(list(STUDIES) if "all" in arguments.measure else arguments.measure)
    arguments.output.write_text(report(arguments.results, arguments.output))
    print(arguments.output)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
