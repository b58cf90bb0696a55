"""Word problems of two steps: the plan is named, then each step is worked in columns."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.phrasings import phrase, words
from training.tasks.problem import Problem

PACKS = ("boxes", "bags", "packs", "baskets", "shelves", "rows", "crates")
Step = tuple[str, int]


def solve(start: int, plan: list[Step]) -> tuple[list[str], int]:
    """Works the steps of a plan, each a sign and a number, from the left."""
    lines, value = [], start
    for symbol, operand in plan:
        lines.append(f"Now {value} {symbol} {operand}.")
        if symbol == "+":
            lines += steps.add(value, operand)
            value += operand
        elif symbol == "-":
            lines += steps.subtract(value, operand)
            value -= operand
        else:
            lines += steps.multiply(value, operand)
            value *= operand
    return lines, value


def story(question: str, start: int, plan: list[Step]) -> Problem:
    """The problem whose solution is a plan."""
    lines, value = solve(start, plan)
    expression = f"{start}" + "".join(f" {symbol} {operand}" for symbol, operand in plan)
    return Problem(
        task="stories",
        key=expression,
        question=question,
        thinking="\n".join([f"Plan: {expression}", *lines]),
        answer=f"The answer is {value}.",
        expression=expression,
        value=value,
    )


def small(rng: Random) -> int:
    """A count of things, of one to three digits."""
    return rng.randint(2, rng.choice((9, 50, 99, 99, 400)))


def change(rng: Random, value: int) -> tuple[str, Step]:
    """A sentence about gaining or losing things, and its step; nobody loses more than there is."""
    amount = small(rng)
    if amount < value and rng.random() < 0.5:
        return phrase(rng, "stories", "loss").format(n=amount), ("-", amount)
    return phrase(rng, "stories", "gain").format(n=amount), ("+", amount)


def apply(value: int, step: Step) -> int:
    """What a gain or a loss leaves."""
    return value + step[1] if step[0] == "+" else value - step[1]


def gains_and_losses(rng: Random) -> Problem:
    """Somebody has things, then gains or loses some, twice."""
    who, items, start = (
        rng.choice(words("stories", "names")),
        rng.choice(words("stories", "items")),
        small(rng),
    )
    first_text, first = change(rng, start)
    second_text, second = change(rng, apply(start, first))
    join = rng.choice((" and then ", ". Then {who} ", " and ", ", then ")).format(who=who)
    has = rng.choice(("has", "has", "starts with", "owns"))
    ask = phrase(rng, "stories", "ask").format(items=items, who=who)
    return story(
        f"{who} {has} {start} {items}. {who} {first_text}{join}{second_text}. {ask}",
        start,
        [first, second],
    )


def packs(rng: Random) -> Problem:
    """Packs of equal size, then some gained or lost."""
    who, items, pack = (
        rng.choice(words("stories", "names")),
        rng.choice(words("stories", "items")),
        rng.choice(PACKS),
    )
    count, size = rng.randint(2, 12), rng.randint(2, 60)
    text, step = change(rng, count * size)
    question = phrase(rng, "stories", "packs")
    ask = phrase(rng, "stories", "ask").format(items=items, who=who)
    question = question.format(who=who, count=count, pack=pack, size=size, items=items, text=text, ask=ask)
    return story(question, size, [("*", count), step])


def two_people(rng: Random) -> Problem:
    """One has some, the other more or fewer; how many together."""
    one, other = rng.sample(words("stories", "names"), 2)
    items, start, difference = rng.choice(words("stories", "items")), small(rng), small(rng)
    question = f"{one} has {start} {items}. {other} has {difference} more {items} than {one}. " + rng.choice(
        ("How many {items} do they have together?", "How many {items} do they have in total?")
    ).format(items=items)
    return story(question, start, [("+", difference), ("+", start)])


def shopping(rng: Random) -> Problem:
    """Some things at a price, paid with a larger amount; how much is left."""
    who, items = rng.choice(words("stories", "names")), rng.choice(words("stories", "items"))
    count, price = rng.randint(2, 9), rng.randint(2, 40)
    money = count * price + rng.randint(1, 200)
    question = phrase(rng, "stories", "shopping").format(
        who=who, money=money, count=count, items=items, price=price
    )
    lines, cost = solve(price, [("*", count)])
    lines += [f"Now {money} - {cost}.", *steps.subtract(money, cost)]
    return Problem(
        task="stories",
        key=f"{money} {price} {count}",
        question=question,
        thinking="\n".join([f"Plan: {money} - {price} * {count}", *lines]),
        answer=f"The answer is {money - cost}.",
        expression=f"{money} - {price} * {count}",
        value=money - cost,
    )


def word_problem(rng: Random) -> Problem:
    """Any of the stories."""
    kinds = (gains_and_losses, gains_and_losses, packs, two_people, shopping)
    return rng.choice(kinds)(rng)
