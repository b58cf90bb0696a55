"""Addition, subtraction and multiplication, worked column by column."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.problem import Problem

ADD = (
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "{a}+{b}=?",
    "{a} + {b} = ?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} plus {b}",
    "What is {a} plus {b}?",
    "What's {a} + {b}?",
    "Calculate {a} + {b}.",
    "Compute {a} + {b}.",
    "Compute {a}+{b}",
    "What is the sum of {a} and {b}?",
    "Find the sum of {a} and {b}.",
    "How much is {a} + {b}?",
    "Please add {a} and {b}.",
    "How much is {a} plus {b}?",
    "Work out {a} + {b}.",
    "Can you add {a} and {b}?",
    "Add {b} to {a}.",
    "what is {a}+{b}",
    "Sum {a} and {b}.",
    "Tell me {a} + {b}.",
    "Solve {a} + {b}.",
    "I need {a} + {b}.",
    "What do you get if you add {a} and {b}?",
    "Give me the sum of {a} and {b}.",
    "What does {a} + {b} equal?",
    "Evaluate {a} + {b}.",
    "{a} + {b} is what?",
    "add {a} {b}",
)
SUBTRACT = (
    "What is {a} - {b}?",
    "Subtract {b} from {a}.",
    "{a}-{b}=?",
    "{a} - {b} = ?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} minus {b}",
    "What is {a} minus {b}?",
    "What's {a} - {b}?",
    "Calculate {a} - {b}.",
    "Compute {a} - {b}.",
    "Compute {a}-{b}",
    "Take {b} away from {a}.",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "Work out {a} - {b}.",
    "Find the difference of {a} and {b}.",
    "Please subtract {b} from {a}.",
    "Can you subtract {b} from {a}?",
    "Solve {a} - {b}.",
    "Tell me {a} - {b}.",
    "what is {a}-{b}",
    "What do you get if you subtract {b} from {a}?",
    "What does {a} - {b} equal?",
    "Evaluate {a} - {b}.",
    "I need {a} - {b}.",
    "{a} take away {b}",
    "What is left if you take {b} from {a}?",
    "{a} - {b} is what?",
)
MULTIPLY = (
    "What is {a} * {b}?",
    "Multiply {a} by {b}.",
    "{a}*{b}=?",
    "{a} * {b} = ?",
    "{a} * {b}",
    "{a} times {b}",
    "{a} x {b}",
    "What is {a} times {b}?",
    "What is {a} x {b}?",
    "What's {a} * {b}?",
    "Calculate {a} * {b}.",
    "Compute {a} * {b}.",
    "What is the product of {a} and {b}?",
    "Find the product of {a} and {b}.",
    "How much is {a} * {b}?",
    "Work out {a} * {b}.",
    "How much is {a} times {b}?",
    "Multiply {a} and {b}.",
    "Please multiply {a} by {b}.",
    "Can you multiply {a} by {b}?",
    "Solve {a} * {b}.",
    "Tell me {a} * {b}.",
    "what is {a}*{b}",
    "What does {a} * {b} equal?",
    "Evaluate {a} * {b}.",
    "{a}x{b}",
)


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
        question=rng.choice(ADD).format(a=a, b=b),
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
        question=rng.choice(SUBTRACT).format(a=a, b=b),
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
        question=rng.choice(MULTIPLY).format(a=a, b=b),
        thinking="\n".join(lines),
        answer=f"{a} * {b} = {a * b}",
        expression=f"{a} * {b}",
        value=a * b,
    )
