"""Written-out arithmetic: the lines that the model learns to think in.

Every number is restated with its places named from the right, and every step touches one column, so that each
token follows from a few tokens nearby. All tasks share these forms: what is learnt in one serves the others.
"""

from __future__ import annotations

PLACES = ("ones", "tens", "hundreds", "thousands", "ten-thousands", "hundred-thousands", "millions")


def digits_from_right(number: int) -> list[int]:
    """478 -> [8, 7, 4]."""
    return [int(digit) for digit in reversed(str(number))]


def places(number: int) -> str:
    """478 -> '478: ones 8, tens 7, hundreds 4.'"""
    parts = [f"{PLACES[i]} {digit}" for i, digit in enumerate(digits_from_right(number))]
    return f"{number}: {', '.join(parts)}."


def read_back(written: list[int]) -> str:
    """Names the written digits from the left: [4, 3, 7] -> 'Read: hundreds 7, tens 3, ones 4.'"""
    parts = [f"{PLACES[i]} {written[i]}" for i in reversed(range(len(written)))]
    return f"Read: {', '.join(parts)}."


def columns(a: int, b: int) -> list[tuple[int, int]]:
    """The digits of two numbers column by column from the right, zeros where one has none."""
    left, right = digits_from_right(a), digits_from_right(b)
    width = max(len(left), len(right))
    return list(zip(left + [0] * (width - len(left)), right + [0] * (width - len(right)), strict=True))


def add(a: int, b: int) -> list[str]:
    """Column addition of two numbers."""
    lines, written, carry = [places(a), places(b)], [], 0
    for i, (left, right) in enumerate(columns(a, b)):
        total = left + right + carry
        lines.append(f"{PLACES[i]}: {left}+{right}+{carry}={total}, write {total % 10}, carry {total // 10}.")
        written.append(total % 10)
        carry = total // 10
    if carry:
        lines.append(f"{PLACES[len(written)]}: write {carry}.")
        written.append(carry)
    return [*lines, read_back(written), f"So {a} + {b} = {a + b}."]


def subtract(a: int, b: int) -> list[str]:
    """Column subtraction; a is at least b."""
    lines, written, borrow = [places(a), places(b)], [], 0
    for i, (left, right) in enumerate(columns(a, b)):
        due = right + borrow
        start = f"{PLACES[i]}: {right}+{borrow}={due}"
        if left < due:
            digit, sign, top, borrow = left + 10 - due, "<", left + 10, 1
        else:
            digit, sign, top, borrow = left - due, ">=", left, 0
        lines.append(f"{start}, {left} {sign} {due}, {top}-{due}={digit}, write {digit}, borrow {borrow}.")
        written.append(digit)
    return [*lines, read_back(written), f"So {a} - {b} = {a - b}."]


def multiply_by_digit(a: int, digit: int) -> list[str]:
    """Column multiplication by one digit."""
    lines, written, carry = [places(a)], [], 0
    for i, left in enumerate(digits_from_right(a)):
        product = left * digit
        total = product + carry
        lines.append(
            f"{PLACES[i]}: {left}*{digit}={product}, {product}+{carry}={total}, "
            f"write {total % 10}, carry {total // 10}."
        )
        written.append(total % 10)
        carry = total // 10
    if carry:
        lines.append(f"{PLACES[len(written)]}: write {carry}.")
        written.append(carry)
    return [*lines, read_back(written), f"So {a} * {digit} = {a * digit}."]


def multiply(a: int, b: int) -> list[str]:
    """Multiplication by a number of one or two digits: by its ones, by its tens, then the sum."""
    if b < 10:
        return multiply_by_digit(a, b)
    tens, ones = divmod(b, 10)
    lines = [f"{b} is {tens}0 + {ones}."]
    if ones:
        lines += multiply_by_digit(a, ones)
    lines += multiply_by_digit(a, tens)
    lines.append(f"With a zero {a} * {tens}0 = {a * tens}0.")
    if ones:
        lines += [f"Add {a * ones} and {a * tens}0.", *add(a * ones, a * tens * 10)]
        lines.append(f"So {a} * {b} = {a * b}.")
    return lines


def num_digits(number: int) -> str:
    """7 -> '7 has 1 digit', 42 -> '42 has 2 digits'."""
    length = len(str(number))
    return f"{number} has {length} digit{'s' if length > 1 else ''}"


def sign(a: int, b: int) -> str:
    """The sign that belongs between two numbers."""
    return "<" if a < b else ">" if a > b else "="


def compare(a: int, b: int) -> str:
    """Compares by the number of digits, then digit by digit from the left until two differ."""
    left, right = str(a), str(b)
    parts = [f"{len(left)} {sign(len(left), len(right))} {len(right)} digits"]
    if len(left) == len(right):
        for x, y in zip(left, right, strict=True):
            parts.append(f"{x} {sign(int(x), int(y))} {y}")
            if x != y:
                break
    return f"{a} and {b}: {', '.join(parts)}, so {a} {sign(a, b)} {b}."
