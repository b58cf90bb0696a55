"""Comparing and sorting numbers: every decision is spelt out digit by digit before it is used."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.arithmetic import number, pair
from training.tasks.phrasings import phrase
from training.tasks.problem import Problem


def neighbours(rng: Random) -> tuple[int, int]:
    """Two numbers that are hard to tell apart: one digit changed, or two digits swapped."""
    a = number(rng, max_digits=5, min_digits=2)
    digits = list(str(a))
    if rng.random() < 0.5:
        i, j = rng.sample(range(len(digits)), 2)
        digits[i], digits[j] = digits[j], digits[i]
    else:
        digits[rng.randrange(len(digits))] = str(rng.randrange(10))
    return a, int("".join(digits))


def comparing(rng: Random) -> Problem:
    """Which of two numbers is larger, or smaller."""
    a, b = neighbours(rng) if rng.random() < 0.5 else pair(rng, max_digits=5)
    wants_larger = rng.random() < 0.55
    low, high = min(a, b), max(a, b)
    word, picked = ("larger", high) if wants_larger else ("smaller", low)
    lines = [
        f"Find the {word} of {a} and {b}.",
        f"{steps.num_digits(a)}, {steps.num_digits(b)}.",
        steps.compare(a, b),
    ]
    if a == b:
        lines.append("They are equal.")
        answer = f"{a} and {b} are equal."
    else:
        lines += [f"larger: {high}", f"smaller: {low}", f"Pick the {word}: {picked}"]
        answer = f"{picked} is {word}."
    return Problem(
        task="comparing",
        key=f"{word} {a} {b}",
        question=phrase(rng, "ordering", word).format(a=a, b=b),
        thinking="\n".join(lines),
        answer=answer,
    )


def listed(numbers: list[int]) -> str:
    """[5, 3] -> '5, 3'."""
    return ", ".join(map(str, numbers))


def written(rng: Random, numbers: list[int]) -> str:
    """A list as people write it."""
    style = rng.random()
    if style < 0.65:
        return listed(numbers)
    if style < 0.85:
        return f"{listed(numbers[:-1])} and {numbers[-1]}"
    return " ".join(map(str, numbers)) if style < 0.95 else f"[{listed(numbers)}]"


def some_numbers(rng: Random) -> list[int]:
    """Two to six numbers; the longer the list, the shorter the numbers."""
    length = rng.choice((2, 3, 3, 4, 4, 5, 6))
    return [number(rng, max_digits=4 if length < 4 else 3 if length < 6 else 2) for _ in range(length)]


def insert(ordered: list[int], item: int, label: str) -> list[str]:
    """Puts an item in its place, comparing from the front; changes `ordered`."""
    lines = [f"Take {item}."]
    for i, other in enumerate(ordered):
        lines.append(steps.compare(item, other))
        if item <= other:
            ordered.insert(i, item)
            break
    else:
        ordered.append(item)
    return [*lines, f"{label}: {listed(ordered)}"]


def sorting(rng: Random) -> Problem:
    """Sorts by insertion; every line of the list says which end is wanted first."""
    numbers = some_numbers(rng)
    order = "descending" if rng.random() < 0.25 else "ascending"
    label = "reverse List" if order == "descending" else "List"
    lengths = ", ".join(map(steps.num_digits, numbers))
    lines = [f"{label}: sort {listed(numbers)}", f"{lengths}.", f"{label}: {numbers[0]}"]
    ordered = numbers[:1]
    for item in numbers[1:]:
        lines += insert(ordered, item, label)
    if order == "descending":
        ordered = ordered[::-1]
        lines.append(f"Largest first: {listed(ordered)}")
    else:
        lines.append(f"Smallest first: {listed(ordered)}")
    return Problem(
        task="sorting",
        key=f"{order == 'descending'} {listed(numbers)}",
        question=phrase(rng, "ordering", order).format(xs=written(rng, numbers)),
        thinking="\n".join(lines),
        answer=listed(ordered),
    )


def extremes(rng: Random) -> Problem:
    """The largest or the smallest of a list, keeping the best so far."""
    numbers = some_numbers(rng)
    word = rng.choice(("largest", "smallest"))
    pick = max if word == "largest" else min
    lines = [f"Find the {word} of {listed(numbers)}", ", ".join(map(steps.num_digits, numbers)) + "."]
    best = numbers[0]
    lines.append(f"{word} so far: {best}")
    for item in numbers[1:]:
        lines.append(steps.compare(item, best))
        best = pick(best, item)
        lines.append(f"{word} so far: {best}")
    return Problem(
        task="extremes",
        key=f"{word} {listed(numbers)}",
        question=phrase(rng, "ordering", word).format(xs=written(rng, numbers)),
        thinking="\n".join(lines),
        answer=f"The {word} is {best}.",
    )
