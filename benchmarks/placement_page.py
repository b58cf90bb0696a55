"""Writes docs/placement.md: how evenly experts load ranks, before and after they are placed by loads."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results, simulated_placement
from benchmarks.sections import markdown

PATH = results.ROOT / "docs" / "placement.md"
GIGABYTES = ("eplb_gigabytes", "moved_gigabytes")

HEAD = """# Placement of experts

A layer is done when its busiest rank is. *Imbalance* is the load of each layer's busiest rank by that of the
mean rank, over all layers: 1 is best. The load of a rank is how many kept tokens chose its experts, copies
sharing equally.

Measured by `python -m benchmarks.placement`, {day}, on {machine}.
"""

SIMULATED = """
## Simulated: {num_layers} layers of {num_experts} experts

Sizes of Kimi K2.5, {tokens:,} tokens a minute, each choosing {per_token} experts of a layer by Zipf's law
with exponent {exponent:g}; which expert is how popular drifts, half forgotten in {half_life:.0f} minutes. Law
and drift are assumptions. Figures are means over the second half of {minutes} minutes, under the loads as
they are; placements are made of loads as they were counted until then (the window of
`services/worker/loads.py`).

- *balanced*: experts in order, as a group begins;
- *EPLB once*: placed anew after the first minute, then left;
- *EPLB every minute*: placed anew each minute, which reads most experts again (GB, all ranks together);
- *moves*: as a group does it while it serves, {budget} MB of one rank at a time, only for a gain.

{table}
"""

MEASURED = """
## Measured: the tiny model on its own tasks

A real group without drafts, 4 streams: first arithmetic alone, then sorting alone. *balanced* and *EPLB* are
for the loads of that kind of task alone, *moves* is what the group had reached at its end, for the loads of
its window, which has both kinds. *ms between steps* is what it takes to let one round of moves take effect.

{table}
"""


def write(directory: Path = results.DIRECTORY, output: Path = PATH) -> None:
    """Writes the page of the results in a directory."""
    found = results.load("placement", directory)
    if found is not None:
        head = HEAD.format(day=found.day, machine=found.machine)
        output.write_text(head + _simulated(found.rows) + _measured(found.rows))


def _of(part: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part]


def _simulated(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = {
        "num_ranks": "ranks", "num_redundant": "redundant", "balanced": "balanced", "eplb_once": "EPLB once",
        "eplb_every_minute": "EPLB every minute", "eplb_gigabytes": "GB read", "moves": "moves",
        "moved_gigabytes": "GB read ", "num_rounds": "rounds",
    }  # fmt: skip
    found = [dict(row) for row in _of("simulated", rows)]
    if not found:
        return ""
    return SIMULATED.format(
        num_layers=simulated_placement.NUM_LAYERS,
        num_experts=simulated_placement.NUM_EXPERTS,
        per_token=simulated_placement.NUM_EXPERTS_PER_TOKEN,
        tokens=simulated_placement.TOKENS_PER_MINUTE,
        exponent=simulated_placement.EXPONENT,
        minutes=simulated_placement.NUM_MINUTES,
        half_life=math.log(0.5) / math.log(simulated_placement.MEMORY),
        budget=simulated_placement.BUDGET >> 20,
        table=markdown([row | {name: round(row[name]) for name in GIGABYTES} for row in found], columns),
    )


def _measured(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = {
        "num_ranks": "ranks", "tasks": "tasks", "balanced": "balanced", "eplb": "EPLB", "moves": "moves",
        "num_moves": "experts moved", "moved_bytes": "bytes", "milliseconds": "ms between steps",
    }  # fmt: skip
    found = _of("measured", rows)
    if not found:
        return ""
    timed = [
        {**row, "milliseconds": 1000 * row["placing_seconds"] / max(row["num_rounds"], 1)} for row in found
    ]
    return MEASURED.format(table=markdown(timed, columns))
