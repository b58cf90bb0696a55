"""The task generator: its steps are right, its split is clean, its documents are what serving sends."""

from __future__ import annotations

import re
from random import Random

import pytest
from tokenizers import Tokenizer

from training.chat import MODEL_DIR
from training.documents import document, encode
from training.tasks import WEIGHTS, Task, draw, steps

EQUATION = re.compile(r"(?<![\d+*-])(\d+)([-+*])(\d+)(?:\+(\d+))?=(\d+)(?!\d)")
COMPARISON = re.compile(r"(?<![-+*\d] )\b(\d+) ([<>=]) (\d+)\b")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.mark.parametrize("task", WEIGHTS, ids=lambda task: task.__name__)
def test_every_equation_and_comparison_in_the_steps_holds(task: Task) -> None:
    rng = Random(0)
    for _ in range(50):
        thinking = draw(rng, held_out=False, task=task).thinking
        for left, symbol, right, carry, result in EQUATION.findall(thinking):
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[symbol](int(left), int(right))
            assert value + int(carry or 0) == int(result), thinking
        for left, symbol, right in COMPARISON.findall(thinking):
            assert steps.sign(int(left), int(right)) == symbol, thinking


@pytest.mark.parametrize("task", WEIGHTS, ids=lambda task: task.__name__)
def test_the_answer_is_the_only_one_that_counts(task: Task) -> None:
    problem = draw(Random(1), held_out=True, task=task)
    assert problem.check(problem.answer)
    assert not problem.check(problem.answer + "0")


def test_a_held_out_problem_is_held_out_in_every_phrasing() -> None:
    rng, sides = Random(2), {}
    for _ in range(3000):
        side = rng.random() < 0.5
        problem = draw(rng, held_out=side)
        if problem.task != "talk":
            assert sides.setdefault((problem.task, problem.key), side) == side


def test_the_sum_is_what_the_columns_say() -> None:
    lines = steps.add(478, 256)
    assert lines[2] == "ones: 8+6+0=14, write 4, carry 1."
    assert lines[-2:] == ["Read: hundreds 7, tens 3, ones 4.", "So 478 + 256 = 734."]


def test_digits_are_tokens_and_unknown_words_are_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("478").tokens == ["4", "7", "8"]
    assert tokenizer.encode(" strawberry").tokens == ["Ġ", *"strawberry"]
    assert tokenizer.encode("What").tokens == ["What"]


def test_any_text_comes_back_from_its_tokens(tokenizer: Tokenizer) -> None:
    text = 'Ünïcode 中文 \t\r\n {"a": [1, 22]}   ...'
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_two_parts_encode_like_the_whole(tokenizer: Tokenizer) -> None:
    rng = Random(3)
    for _ in range(100):
        item = document(rng, tokenizer)
        text = tokenizer.decode(item.token_ids, skip_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False).ids == item.token_ids


def test_the_prompt_is_not_learnt(tokenizer: Tokenizer) -> None:
    item = encode(tokenizer, "What is 1 + 1?", "\n1 + 1 = 2[EOS]")
    assert tokenizer.decode(item.token_ids[: item.num_prompt_tokens]) == "What is 1 + 1?"
