"""Unit and date arithmetic: a rule recalled, then the column arithmetic that all tasks share."""

from __future__ import annotations

from random import Random

from training.tasks import steps
from training.tasks.phrasings import phrase
from training.tasks.problem import Problem

# larger unit, smaller unit, how many of the smaller make one of the larger
UNITS = (
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
    ("years", "months", 12), ("kilometers", "meters", 1000), ("meters", "centimeters", 100),
    ("kilograms", "grams", 1000), ("centimeters", "millimeters", 10), ("liters", "milliliters", 1000),
    ("dollars", "cents", 100), ("feet", "inches", 12), ("dozen", "pieces", 12), ("yards", "feet", 3),
    ("tons", "kilograms", 1000), ("euros", "cents", 100), ("decades", "years", 10),
    ("centuries", "years", 100),
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    ("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30), ("July", 31),
    ("August", 31), ("September", 30), ("October", 31), ("November", 30), ("December", 31),
)  # fmt: skip


def scale(amount: int, factor: int) -> list[str]:
    """Multiplies by a unit's factor: powers of ten append zeros."""
    zeros = str(factor)[1:]
    if str(factor) == "1" + zeros:
        return [f"{amount} with {len(zeros)} zero{'s' if len(zeros) > 1 else ''}: {amount * factor}."]
    return steps.multiply(amount, factor)


def conversion(rng: Random) -> Problem:
    """A larger unit, and sometimes some of the smaller one, in the smaller unit."""
    large, small, factor = rng.choice(UNITS)
    count = rng.randint(2, 60 if factor < 100 else 99)
    total, extra = count * factor, 0
    if rng.random() < 0.4:
        extra = rng.randint(1, min(factor, 99))
    plan = f"{count} * {factor} + {extra}" if extra else f"{count} * {factor}"
    lines = [f"1 of {large} is {factor} {small}.", f"Plan: {plan}", *scale(count, factor)]
    if extra:
        lines += [f"Now {total} + {extra}.", *steps.add(total, extra)]
    kind = "convert_sum" if extra else "convert"
    return Problem(
        task="units",
        key=f"{large} {small} {count} {extra}",
        question=phrase(rng, "measures", kind).format(large=large, small=small, n=count, m=extra),
        thinking="\n".join(lines),
        answer=f"The answer is {total + extra}.",
    )


def weekday(rng: Random) -> Problem:
    """The day of the week some days later: whole weeks are taken off, the rest is counted."""
    start, num_days = rng.randrange(7), rng.randint(1, 30)
    weeks, rest = divmod(num_days, 7)
    lines = [
        f"{num_days} days after {DAYS[start]}.",
        f"{weeks}*7={weeks * 7}, {num_days}-{weeks * 7}={rest}, so count {rest}.",
    ]
    counted = [f"0 {DAYS[start]}"] + [f"{i} {DAYS[(start + i) % 7]}" for i in range(1, rest + 1)]
    lines.append(", ".join(counted) + ".")
    return Problem(
        task="weekdays",
        key=f"{DAYS[start]} {num_days}",
        question=phrase(rng, "measures", "weekday_after").format(n=num_days, day=DAYS[start]),
        thinking="\n".join(lines),
        answer=f"It is {DAYS[(start + num_days) % 7]}.",
    )


def date(rng: Random) -> Problem:
    """The date some days later, over the ends of at most two months, in a year of 365 days."""
    first = month = rng.randrange(12)
    day, num_days = rng.randint(1, MONTHS[month][1]), rng.randint(1, 45)
    total, (name, length) = day + num_days, MONTHS[month]
    lines = [f"{num_days} days after {name} {day}. {name} has {length} days.", *steps.add(day, num_days)]
    while total > length:
        lines += [f"{name} has {length} days, {total} > {length}.", *steps.subtract(total, length)]
        total, month = total - length, (month + 1) % 12
        name, length = MONTHS[month]
        lines.append(f"The next month is {name}.")
    lines += [f"{name} has {length} days, {total} <= {length}.", f"So {name} {total}."]
    return Problem(
        task="dates",
        key=f"{first} {day} {num_days}",
        question=phrase(rng, "measures", "date_after").format(n=num_days, month=MONTHS[first][0], day=day),
        thinking="\n".join(lines),
        answer=f"It is {name} {total}.",
    )


def clock(hour: int, minute: int) -> str:
    """9, 5 -> '9:05'."""
    return f"{hour}:{minute:02d}"


def time(rng: Random) -> Problem:
    """The time of day some minutes later, on a clock of 24 hours."""
    hour, minute, num_minutes = rng.randrange(24), rng.randrange(60), rng.randint(1, 75)
    total, later = minute + num_minutes, hour
    lines = [
        f"{num_minutes} minutes after {clock(hour, minute)}. The hour is {hour}, the minutes are {minute}.",
        *steps.add(minute, num_minutes),
    ]
    while total >= 60:
        lines += [f"{total} >= 60.", *steps.subtract(total, 60)]
        total, later = total - 60, (later + 1) % 24
        lines.append(f"The next hour is {later}.")
    lines += [f"{total} < 60.", f"So {clock(later, total)}."]
    return Problem(
        task="times",
        key=f"{hour} {minute} {num_minutes}",
        question=phrase(rng, "measures", "time_after").format(time=clock(hour, minute), n=num_minutes),
        thinking="\n".join(lines),
        answer=f"The time is {clock(later, total)}.",
    )
