"""Measures how evenly experts load ranks, before and after they are placed by their loads.

    python -m benchmarks.placement [--parts simulated measured] [--results DIR]

Prints a line per row, writes docs/results/placement.json, keeping the rows of parts that are not measured,
and docs/placement.md of it.
"""

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import measured_placement, placement_page, results, simulated_placement

NAME = "placement"
PARTS: dict[str, Callable[[], Iterable[Mapping[str, Any]]]] = {
    "simulated": simulated_placement.rows,
    "measured": lambda: asyncio.run(measured_placement.rows()),
}


def main() -> None:
    """Measures the parts that are named, or both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    found = results.load(NAME, arguments.results)
    rows = [row for row in (found.rows if found else ()) if row["part"] not in arguments.parts]
    for part in arguments.parts:
        for row in PARTS[part]():
            print(json.dumps(row), flush=True)
            rows.append(row)
    results.save(NAME, rows, arguments.results)
    placement_page.write(arguments.results)


if __name__ == "__main__":
    main()
