"""Addition, subtraction and multiplication, worked column by column."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.phrasings import phrase
from training.tasks.problem import Problem


def number(rng: Random, *, max_digits: int, min_digits: int = 1) -> int:
    """A number whose length is drawn first, so that short ones are as common as long ones."""
    length = rng.randint(min_digits, max_digits)
    return rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)


def pair(rng: Random, *, max_digits: int) -> tuple[int, int]:
    """Two numbers, more often long than short, and more often of nearly one length."""
    a = number(rng, max_digits=max_digits, min_digits=rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.5:
        length = len(str(a))
        return a, number(rng, max_digits=length, min_digits=length)
    return a, number(rng, max_digits=max_digits)


def addition(rng: Random) -> Problem:
    """a + b, one to five digits each."""
    a, b = pair(rng, max_digits=5 if rng.random() < 0.25 else 4)
    lines = [f"Add {a} and {b}.", *steps.add(a, b)]
    return Problem(
        task="addition",
        key=f"{a} {b}",
        question=phrase(rng, "arithmetic", "add").format(a=a, b=b),
        thinking="\n".join(lines),
        answer=f"{a} + {b} = {a + b}",
        expression=f"{a} + {b}",
        value=a + b,
    )


def subtraction(rng: Random) -> Problem:
    """a - b, one to five digits each; one in eight comes out negative."""
    b, a = sorted(pair(rng, max_digits=5 if rng.random() < 0.25 else 4))
    if rng.random() < 0.125:
        a, b = b, a
    lines = [f"Subtract {b} from {a}.", f"{steps.num_digits(a)}, {steps.num_digits(b)}.", steps.compare(a, b)]
    if a >= b:
        lines += steps.subtract(a, b)
    else:
        lines += [
            "The result is negative, turn it around.",
            *steps.subtract(b, a),
            f"So {a} - {b} = {a - b}.",
        ]
    return Problem(
        task="subtraction",
        key=f"{a} {b}",
        question=phrase(rng, "arithmetic", "subtract").format(a=a, b=b),
        thinking="\n".join(lines),
        answer=f"{a} - {b} = {a - b}",
        expression=f"{a} - {b}",
        value=a - b,
    )


def multiplication(rng: Random) -> Problem:
    """a * b: up to four digits by one, or up to three by two."""
    if rng.random() < 0.5:
        a, b = number(rng, max_digits=4), rng.randrange(10)
    else:
        a, b = number(rng, max_digits=3 if rng.random() < 0.3 else 2, min_digits=2), rng.randrange(10, 100)
    lines = [f"Multiply {a} by {b}.", *steps.multiply(a, b)]
    return Problem(
        task="multiplication",
        key=f"{a} {b}",
        question=phrase(rng, "arithmetic", "multiply").format(a=a, b=b),
        thinking="\n".join(lines),
        answer=f"{a} * {b} = {a * b}",
        expression=f"{a} * {b}",
        value=a * b,
    )
