"""Writes docs/recovery.md: how long an answer pauses when a process dies under it.

python -m benchmarks.recovery_page
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import results
from benchmarks.sections import markdown

PATH = results.ROOT / "docs" / "recovery.md"
LIVENESS_SECONDS = 2.0
# The longest median, by what dies: a rank's group is formed anew, a scheduler or gateway starts again.
TARGET_SECONDS = {"rank": 5.0, "agent": 5.0, "worker": 5.0, "scheduler": 3.0, "gateway": 3.0}

HEAD = """# Recovery

What a client sees of an answer that runs when a process dies under it: the longest silence from the blow on.
Measured on the embedded tiny model with a local stack on {machine}, {day}, by

    {command}

*Killed* is SIGKILL, *stopped* is SIGSTOP for good: the process answers nobody, and the {liveness:g} s until
it is given up count. A *pair* is a worker group, its agent and its scheduler at once. The answer is the
same to the last token in every case (`tests/integration/test_chaos.py`).
The targets are of the median on 2 ranks: {rank:g} s for a rank or its agent, {service:g} s for a scheduler or
gateway, and {liveness:g} s more where it is stopped; without a drafter no step waits, which the
last columns show: what is said of targets here is of those in seconds.
Steps before are those of the 1.5 s before the blow, their longest as a median.

{verdict}
"""

CELL = """
## {title}

{table}

Where the time goes, in seconds from the blow to each event before the next token (medians):

{milestones}
"""


def main() -> None:
    """Writes the page."""
    result = results.load("recovery")
    if result is None:
        return
    head = HEAD.format(
        machine=result.machine,
        day=result.day,
        command=result.command,
        liveness=LIVENESS_SECONDS,
        rank=TARGET_SECONDS["rank"],
        service=TARGET_SECONDS["scheduler"],
        verdict=verdict(result.rows),
    )
    PATH.write_text(head + "".join(cells(result.rows)))


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Says which medians miss their target."""
    missed = [row for row in rows if (target := target_of(row)) and row["median_seconds"] > target]
    if not missed:
        return "All targets are met."
    named = (f"{_name(row)} at {row['num_ranks']} ranks, {row['num_pairs']} pairs" for row in missed)
    return f"Targets missed: {', '.join(named)}."


def target_of(row: Mapping[str, Any]) -> float | None:
    """Returns the longest median that is asked for; None where none is."""
    target = TARGET_SECONDS.get(row["victim"].partition(" ")[0])
    return target + LIVENESS_SECONDS * (row["manner"] == "stopped") if target else None


def cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a part for each size of the stack."""
    for num_ranks, num_pairs in dict.fromkeys((row["num_ranks"], row["num_pairs"]) for row in rows):
        own = [row for row in rows if (row["num_ranks"], row["num_pairs"]) == (num_ranks, num_pairs)]
        yield CELL.format(
            title=f"{_count(num_ranks, 'rank')}, {_count(num_pairs, 'pair')}",
            table=markdown([_line(row) for row in own]),
            milestones="\n".join(f"- {_name(row)}: {_path(row)}" for row in own),
        )


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": _name(row),
        "times": row["num"],
        "median": f"{row['median_seconds']:.2f} s",
        "longest": f"{row['max_seconds']:.2f} s",
        "target": f"{target:g} s" if (target := target_of(row)) else "",
        "step before": f"{1e3 * row['usual_seconds']:.0f} ms",
        "longest step before": f"{1e3 * row['usual_max_seconds']:.0f} ms",
    }


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['victim']} {row['manner']}"


def _path(row: Mapping[str, Any]) -> str:
    passed = [*row["milestones"].items(), ("next token", row["median_seconds"])]
    return ", ".join(f"{name} {at:.2f}" for name, at in passed)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


if __name__ == "__main__":
    main()
