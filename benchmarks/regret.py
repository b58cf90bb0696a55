"""Replays recorded drafts through a measured cost table: the controller against every fixed draft length.

    python -m benchmarks.regret --drafts drafts.jsonl --costs costs.json [--num-streams 1 4 16 64]

`drafts.jsonl` holds one text per line, with the drafts that there would be at every position of its output
(record it with drafts asked for and none verified):

    {"text": "gsm-17", "kind": "predictable", "num_prompt_tokens": 210, "num_output_tokens": 180,
     "drafts": [{"position": 0, "source": "suffix", "phase": "thinking", "match_length": 5,
                 "confidences": [0.9, 0.8, 0.8], "num_right": 2}, ...]}

`position` counts the output tokens before the draft, `num_right` its tokens that agree with the text up to
the first that does not. Positions without a draft have no entry; one position may have a draft per source.

`costs.json` holds mean seconds of steps, for each number of sequences several numbers of rows:

    {"num_experts": 32, "num_experts_per_token": 4, "num_moe_layers": 4,
     "cells": [{"num_sequences": 4, "num_rows": 12, "seconds": 0.0412, "num_distinct_experts": 17.5}, ...]}

Between cells it is interpolated in the logarithms of sequences and of rows per sequence. Prints one JSON
line per kind and number of streams, and as many for all kinds in turn: tokens per second with the controller,
which begins with nothing learnt, over those with the best fixed length, the same once more with what it has
learnt, and with each length.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.replay import Controlled, Drafted, Fixed, replay
from services.scheduler.controller import Controller, ModelFacts, Offer, Settings, StepShape

MAX_NUM_DRAFT_TOKENS = 8
TOKENS_PER_STREAM = 2000
MIXED = "all kinds in turn"


@dataclass(slots=True)
class RecordedText:
    """One line of a recording."""

    kind: str
    num_prompt_tokens: int
    num_output_tokens: int
    by_position: dict[int, list[Drafted]]

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Reads a line."""
        by_position: dict[int, list[Drafted]] = {}
        for item in line["drafts"]:
            offer = Offer(
                source=item["source"],
                confidences=tuple(item["confidences"]),
                match_length=item["match_length"],
                phase=item["phase"],
            )
            by_position.setdefault(item["position"], []).append(Drafted(offer, item["num_right"]))
        return cls(line["kind"], line["num_prompt_tokens"], line["num_output_tokens"], by_position)

    def drafts(self, position: int) -> Sequence[Drafted]:
        """Returns the drafts recorded at a position."""
        return self.by_position.get(position, ())


@dataclass(slots=True)
class CostTable:
    """Measured steps, interpolated, with the noise of measuring put back."""

    model: ModelFacts
    columns: dict[
        int, tuple[np.ndarray, np.ndarray, np.ndarray]
    ]  # by sequences: log rows per, seconds, experts
    noise: float = 0.1
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @classmethod
    def from_json(cls, table: Mapping[str, Any], noise: float = 0.1) -> Self:
        """Reads a table."""
        names = ("num_experts", "num_experts_per_token", "num_moe_layers")
        model = ModelFacts(**{name: table[name] for name in names})
        columns = {}
        for count in sorted({cell["num_sequences"] for cell in table["cells"]}):
            cells = sorted(
                (cell["num_rows"], cell["seconds"], cell["num_distinct_experts"])
                for cell in table["cells"]
                if cell["num_sequences"] == count
            )
            rows, seconds, experts = np.array(cells).T
            columns[count] = np.log(rows / count), seconds, experts
        return cls(model, columns, noise)

    def step(self, shape: StepShape) -> tuple[float, Sequence[int]]:
        """Returns a step as it would be measured."""
        seconds, experts = self.mean_step(shape)
        distinct = [round(experts)] * self.model.num_moe_layers
        return float(seconds * self.rng.lognormal(0, self.noise)), distinct

    def mean_step(self, shape: StepShape) -> tuple[float, float]:
        """Returns seconds and distinct experts without noise."""
        log_rows = np.log(shape.num_rows / shape.num_sequences)
        counts = list(self.columns)
        found = np.array(
            [
                [np.interp(log_rows, rows, seconds), np.interp(log_rows, rows, experts)]
                for rows, seconds, experts in self.columns.values()
            ]
        )
        at = np.log(shape.num_sequences), np.log(counts)
        return float(np.interp(*at, found[:, 0])), float(np.interp(*at, found[:, 1]))


def regret(
    texts: Sequence[RecordedText],
    table: CostTable,
    num_streams: int,
    *,
    controller: Controller | None = None,
    question_seconds: float = 0.0,
) -> dict[str, Any]:
    """Returns how the controller fares against each fixed length; a new one if none is given."""

    # The streams of a cell take as many steps as those of another, whatever their number.
    num_tokens = max(sum(text.num_output_tokens for text in texts), num_streams * TOKENS_PER_STREAM)

    def run(policy: Controlled | Fixed) -> float:
        costs = CostTable(table.model, table.columns, table.noise)
        outcome = replay(
            cycle(texts), num_streams, policy, costs, num_tokens=num_tokens, question_seconds=question_seconds
        )
        return outcome.tokens_per_second

    controller = controller or Controller(table.model, Settings(max_num_draft_tokens=MAX_NUM_DRAFT_TOKENS))
    speed, again = run(Controlled(controller)), run(Controlled(controller))
    fixed = [run(Fixed(length)) for length in range(MAX_NUM_DRAFT_TOKENS + 1)]
    return {
        "num_streams": num_streams,
        "tokens_per_second": round(speed, 2),
        "fixed_tokens_per_second": [round(value, 2) for value in fixed],
        "best_fixed_length": int(np.argmax(fixed)),
        "ratio_to_best_fixed": round(speed / max(fixed), 4),
        "learnt_ratio_to_best_fixed": round(again / max(fixed), 4),
        "ratio_to_none": round(speed / fixed[0], 4),
    }


def read_texts(lines: Iterable[str]) -> list[RecordedText]:
    """Reads a recording."""
    return [RecordedText.from_json(json.loads(line)) for line in lines if line.strip()]


def by_kind(texts: Sequence[RecordedText]) -> dict[str, list[RecordedText]]:
    """Sorts texts by kind; if there are several, all of them one kind after the other are one more."""
    kinds: dict[str, list[RecordedText]] = {}
    for text in texts:
        kinds.setdefault(text.kind, []).append(text)
    if len(kinds) > 1:
        kinds[MIXED] = [text for kind in list(kinds) for text in kinds[kind]]
    return kinds


def main() -> None:
    """Prints one line per kind and number of streams."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drafts", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--num-streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--question-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    with arguments.drafts.open(encoding="utf-8") as lines:
        kinds = by_kind(read_texts(lines))
    table = CostTable.from_json(json.loads(arguments.costs.read_text()))
    for kind, texts in kinds.items():
        for num_streams in arguments.num_streams:
            row = regret(texts, table, num_streams, question_seconds=arguments.question_ms / 1000)
            print(json.dumps({"kind": kind, **row}), flush=True)


if __name__ == "__main__":
    main()
