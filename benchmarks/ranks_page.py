"""Writes docs/ranks.md: what it costs to split a model over ranks."""

from pathlib import Path

from benchmarks import results
from benchmarks.sections import markdown

NAME = "ranks"
PATH = results.ROOT / "docs" / "ranks.md"

TEXT = """# Ranks

What it costs to split a model over the ranks of a group, and what it wins, on one machine. Every rank has one
thread, so two ranks have two cores where one rank has one. Steps decode one token of each sequence.

Measured by `{command}`, {day}, on {machine}. Medians in milliseconds.

{times}

*step*: as the client of the stream sees it. *exchange*: of the forward pass, what bringing parts of layers
together takes, with waiting for the slower rank. *broadcast*: giving the step's input to the other rank.

## Per layer

{layers}

*bytes*: what a rank takes from each other one.
"""

TIMES = {
    "model": "model", "num_ranks": "ranks", "num_sequences": "sequences", "step_ms": "step",
    "forward_ms": "forward", "exchange_ms": "exchange", "broadcast_ms": "broadcast",
}  # fmt: skip
LAYERS = {
    "model": "model", "num_sequences": "sequences", "exchange_ms_per_layer": "ms",
    "exchanges_per_layer": "exchanges", "bytes_per_layer": "bytes",
}  # fmt: skip


def write(directory: Path = results.DIRECTORY, output: Path = PATH) -> None:
    """Writes the page of the results in a directory."""
    found = results.load(NAME, directory)
    if found is not None:
        split = [row for row in found.rows if row["num_ranks"] > 1]
        text = TEXT.format(
            command=found.command,
            day=found.day,
            machine=found.machine,
            times=markdown(found.rows, TIMES),
            layers=markdown(split, LAYERS),
        )
        output.write_text(text)


if __name__ == "__main__":
    write()
