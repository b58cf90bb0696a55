"""Counts in a recording how often what each source drafts is what was written, place by place.

    python -m benchmarks.recorded_acceptance drafts.jsonl

The recording is that of `benchmarks.record_drafts`: every source of one drafter, asked at every position of
the same answers. `per_position` is the part accepted of the tokens drafted at a place behind accepted ones;
what would follow an answer's last token is not counted. `drafted_part` says how many positions had a draft.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_NUM_DRAFT_TOKENS = 8


@dataclass(slots=True)
class Tally:
    """Drafts of one source on one kind of text."""

    reached: list[int] = field(default_factory=lambda: [0] * MAX_NUM_DRAFT_TOKENS)
    right: list[int] = field(default_factory=lambda: [0] * MAX_NUM_DRAFT_TOKENS)
    num_drafts: int = 0
    num_drafted: int = 0

    def count(self, num_drafted: int, num_right: int) -> None:
        """Counts a draft of so many tokens, the first so many of them right."""
        self.num_drafts += 1
        self.num_drafted += num_drafted
        for place in range(min(num_right + 1, num_drafted)):
            self.reached[place] += 1
            self.right[place] += place < num_right

    def row(self, num_positions: int) -> dict[str, Any]:
        """Returns the figures."""
        pairs = zip(self.right, self.reached, strict=True)
        return {
            "per_position": [round(right / reached, 3) if reached else None for right, reached in pairs],
            "mean_accepted": round(sum(self.right) / self.num_drafts, 2),
            "mean_drafted": round(self.num_drafted / self.num_drafts, 2),
            "drafted_part": round(self.num_drafts / num_positions, 3),
        }


def measure(texts: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row per kind and source."""
    tallies: dict[tuple[str, str], Tally] = {}
    num_positions: dict[str, int] = {}
    for text in texts:
        kind, num_tokens = text["kind"], text["num_output_tokens"]
        num_positions[kind] = num_positions.get(kind, 0) + num_tokens
        for draft in text["drafts"]:
            num_drafted = min(len(draft["confidences"]), num_tokens - draft["position"])
            tallies.setdefault((kind, draft["source"]), Tally()).count(num_drafted, draft["num_right"])
    for (kind, source), tally in sorted(tallies.items()):
        yield {"kind": kind, "source": source, **tally.row(num_positions[kind])}


def main() -> None:
    """Prints a JSON object per kind and source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    with parser.parse_args().path.open(encoding="utf-8") as lines:
        for row in measure(map(json.loads, lines)):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
