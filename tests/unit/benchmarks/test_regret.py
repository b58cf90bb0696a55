"""Replaying recorded drafts."""

import json

import numpy as np
import pytest

from benchmarks.regret import MIXED, CostTable, by_kind, read_texts, regret
from benchmarks.replay import Fixed, replay
from services.scheduler.controller import StepShape

CELLS = [
    {
        "num_sequences": count,
        "num_rows": count * per_sequence,
        "seconds": 0.02 + 0.002 * count + 0.0015 * count * per_sequence,
        "num_distinct_experts": 4.0,
    }
    for count in (1, 4)
    for per_sequence in (1, 9)
]
TABLE = CostTable.from_json(
    {"num_experts": 32, "num_experts_per_token": 4, "num_moe_layers": 4, "cells": CELLS}, noise=0.05
)


def line(kind: str, num_right: int, num_output_tokens: int = 400) -> str:
    drafts = [
        {
            "position": position,
            "source": "suffix",
            "phase": "text",
            "match_length": 4,
            "confidences": [0.8] * 8,
            "num_right": num_right,
        }
        for position in range(num_output_tokens)
    ]
    return json.dumps(
        {
            "text": kind,
            "kind": kind,
            "num_prompt_tokens": 100,
            "num_output_tokens": num_output_tokens,
            "drafts": drafts,
        }
    )


def test_a_fixed_length_wins_what_is_right_of_it() -> None:
    texts = read_texts([line("good", num_right=3)])
    outcome = replay(texts, 1, Fixed(5), TABLE, num_tokens=100)
    assert outcome.num_steps == 25
    assert outcome.num_accepted_tokens == 75
    assert outcome.num_draft_tokens == 125


def test_the_table_gives_back_what_was_measured() -> None:
    shape = StepShape(num_rows=36, num_sequences=4, num_context_tokens=0)
    assert TABLE.mean_step(shape)[0] == pytest.approx(0.02 + 0.008 + 0.054)


def test_the_controller_is_near_the_best_fixed_length_and_never_far_below_none() -> None:
    kinds = by_kind(read_texts([line("good", 8), line("bad", 0), line("good", 8), line("bad", 0)]))
    rows = {kind: regret(texts, TABLE, num_streams=1) for kind, texts in kinds.items()}
    assert rows["good"]["best_fixed_length"] == 8
    assert rows["good"]["ratio_to_best_fixed"] > 0.85
    assert rows["bad"]["best_fixed_length"] == 0
    assert rows["bad"]["ratio_to_none"] > 0.95
    assert rows[MIXED]["ratio_to_best_fixed"] > 1
    assert np.argmax(rows["good"]["fixed_tokens_per_second"]) == 8
