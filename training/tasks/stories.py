"""Word problems of two steps: the plan is named, then each step is worked in columns."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.problem import Problem

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ivan", "Julia", "Kim", "Leo", "Maria", "Noah", "Olga", "Paul",
    "Rosa", "Sam", "Tom", "Vera", "Alice", "Bob", "Lucy", "Max",
)
ITEMS = (
    "apples", "books", "coins", "pens", "stamps", "cards", "eggs", "stones", "shells", "cookies", "tickets", "flowers", "marbles", "balls",
    "oranges", "cups", "candies", "stickers", "toys", "keys",
)
GAIN = ("buys {n} more", "finds {n} more", "gets {n} more", "receives {n} more", "gets {n} from a friend", "collects {n} more")
LOSS = ("gives away {n}", "loses {n}", "sells {n}", "uses {n}", "gives {n} to a friend", "throws away {n}")
ASK = ("How many {items} does {who} have now?", "How many {items} does {who} have?", "How many {items} are left?", "How many does {who} have now?")
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


def story(question: str, start: int, plan: list[Step], items: str) -> Problem:
    """The problem whose solution is a plan."""
    lines, value = solve(start, plan)
    expression = f"{start}" + "".join(f" {symbol} {operand}" for symbol, operand in plan)
    return Problem(
        task="stories",
        key=expression,
        question=question,
        thinking="\n".join([f"Plan: {expression}", *lines]),
        answer=f"The answer is {value} {items}.",
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
        return rng.choice(LOSS).format(n=amount), ("-", amount)
    return rng.choice(GAIN).format(n=amount), ("+", amount)


def apply(value: int, step: Step) -> int:
    """What a gain or a loss leaves."""
    return value + step[1] if step[0] == "+" else value - step[1]


def gains_and_losses(rng: Random) -> Problem:
    """Somebody has things, then gains or loses some, twice."""
    who, items, start = rng.choice(NAMES), rng.choice(ITEMS), small(rng)
    first_text, first = change(rng, start)
    second_text, second = change(rng, apply(start, first))
    join = rng.choice((" and then ", ". Then {who} ", " and ", ", then ")).format(who=who)
    has = rng.choice(("has", "has", "starts with", "owns"))
    ask = rng.choice(ASK).format(items=items, who=who)
    return story(f"{who} {has} {start} {items}. {who} {first_text}{join}{second_text}. {ask}", start, [first, second], items)


def packs(rng: Random) -> Problem:
    """Packs of equal size, then some gained or lost."""
    who, items, pack = rng.choice(NAMES), rng.choice(ITEMS), rng.choice(PACKS)
    count, size = rng.randint(2, 12), rng.randint(2, 60)
    text, step = change(rng, count * size)
    question = rng.choice(
        (
            "{who} has {count} {pack} with {size} {items} each. {who} {text}. {ask}",
            "{who} has {count} {pack}. There are {size} {items} in each. {who} {text}. {ask}",
            "There are {count} {pack} with {size} {items} in each. {who} has them all and {text}. {ask}",
            "{who} buys {count} {pack} of {size} {items} and {text}. {ask}",
        )
    )
    ask = rng.choice(ASK).format(items=items, who=who)
    question = question.format(who=who, count=count, pack=pack, size=size, items=items, text=text, ask=ask)
    return story(question, size, [("*", count), step], items)


def two_people(rng: Random) -> Problem:
    """One has some, the other more or fewer; how many together."""
    one, other = rng.sample(NAMES, 2)
    items, start, difference = rng.choice(ITEMS), small(rng), small(rng)
    question = (
        f"{one} has {start} {items}. {other} has {difference} more {items} than {one}. "
        + rng.choice(("How many {items} do they have together?", "How many {items} do they have in total?")).format(items=items)
    )
    return story(question, start, [("+", difference), ("+", start)], items)


def shopping(rng: Random) -> Problem:
    """Some things at a price, paid with a larger amount; how much is left."""
    who, items = rng.choice(NAMES), rng.choice(ITEMS)
    count, price = rng.randint(2, 9), rng.randint(2, 40)
    money = count * price + rng.randint(1, 200)
    question = rng.choice(
        (
            "{who} has {money} dollars and buys {count} {items} for {price} dollars each. How much money is left?",
            "{who} has {money} dollars. {who} buys {count} {items} at {price} dollars each. How many dollars are left?",
        )
    ).format(who=who, money=money, count=count, items=items, price=price)
    lines, cost = solve(price, [("*", count)])
    lines += [f"Now {money} - {cost}.", *steps.subtract(money, cost)]
    return Problem(
        task="stories",
        key=f"{money} {price} {count}",
        question=question,
        thinking="\n".join([f"Plan: {money} - {price} * {count}", *lines]),
        answer=f"The answer is {money - cost} dollars.",
        expression=f"{money} - {price} * {count}",
        value=money - cost,
    )


def word_problem(rng: Random) -> Problem:
    """Any of the stories."""
    kinds = (gains_and_losses, gains_and_losses, packs, two_people, shopping)
    return rng.choice(kinds)(rng)
