"""Marks the shipped model on problems that no phrasing of was trained on: python -m training.evaluate

A problem counts as right if the text after `</think>` equals the one right answer; where a tool is to be
called, the call must be right to the letter and the answer that follows its result as well.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from training.chat import MODEL_DIR, render, special_id
from training.documents import call_turns, completion, history, user
from training.export import load_checkpoint
from training.generate import generate
from training.network import Network
from training.tasks import WEIGHTS, Problem, Task, draw

MAX_NUM_TOKENS = 700


@dataclass(frozen=True)
class Mark:
    """One task's result."""

    num_problems: int
    num_right: int
    mean_num_tokens: float
    wrong: list[tuple[Problem, str]]


def is_right(problem: Problem, num_calls: int, text: str) -> bool:
    """Whether a turn's text after the thinking is the one expected."""
    said = text.split("</think>")[-1]
    if num_calls == len(problem.calls):
        return "</think>" in text and problem.check(said)
    return f"{said}<|im_end|>" == completion(problem, num_calls).split("</think>")[-1]


def mark(
    network: Network, tokenizer: Tokenizer, rng: Random, task: Task, *, num_problems: int, num_turns: int
) -> Mark:
    """Asks held-out problems of one task, each at the end of so many earlier turns."""
    problems = [draw(rng, held_out=True, task=task) for _ in range(num_problems)]
    turns = [(problem, n) for problem in problems for n in range(len(problem.calls) + 1)]
    texts = [
        render([*history(rng, num_turns), user(problem), *call_turns(problem, n)], tools=problem.tools)
        for problem, n in turns
    ]
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    outputs = generate(network, prompts, special_id(tokenizer, "<|im_end|>"), MAX_NUM_TOKENS)
    said = [tokenizer.decode(output, skip_special_tokens=False) for output in outputs]
    wrong = {id(p): (p, text) for (p, n), text in zip(turns, said, strict=True) if not is_right(p, n, text)}
    mean_num_tokens = sum(map(len, outputs)) / len(outputs)
    return Mark(num_problems, num_problems - len(wrong), mean_num_tokens, list(wrong.values()))


def main() -> None:
    """Prints a table, a line per task, and on demand what went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=MODEL_DIR)
    parser.add_argument("--problems", type=int, default=100, help="per task")
    parser.add_argument("--turns", type=int, default=0, help="questions and answers before each problem")
    parser.add_argument("--tasks", nargs="*", help="names as in training.tasks.WEIGHTS; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="wrong answers to print per task")
    args = parser.parse_args()
    network = load_checkpoint(args.directory)
    tokenizer = Tokenizer.from_file(str(args.directory / "tokenizer.json"))
    print("| task | problems | right | tokens written |\n|---|---|---|---|")
    for task in WEIGHTS:
        if args.tasks and task.__name__ not in args.tasks:
            continue
        result = mark(
            network, tokenizer, Random(args.seed), task, num_problems=args.problems, num_turns=args.turns
        )
        percent = 100 * result.num_right / result.num_problems
        print(
            f"| {task.__name__} | {result.num_problems} | {percent:.1f} % | {result.mean_num_tokens:.0f} |",
            flush=True,
        )
        for problem, text in result.wrong[: args.show]:
            print(f"\n{problem.question}\n{text}\nexpected: {problem.answer}\n")


if __name__ == "__main__":
    main()
