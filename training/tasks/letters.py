"""Counting letters and reversing words: the word is first spelt out, numbered letter by letter."""

from __future__ import annotations

from random import Random

from training.tasks.phrasings import phrase, words
from training.tasks.problem import Problem

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"


def word(rng: Random) -> str:
    """A real word, a pronounceable one or a run of letters; doubled letters are common."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(words("letters", "words"))
    if kind < 0.65:
        syllables = [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 5))]
        made = "".join(part + (part[-1] if rng.random() < 0.15 else "") for part in syllables)
        return made + rng.choice(("", "n", "r", "s", "st", "ll"))
    alphabet = rng.sample(CONSONANTS + VOWELS, rng.randint(3, 12))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 12)))


def few_letters(rng: Random) -> str:
    """A run of two or three letters: where equal ones are rare, equality is never learnt."""
    alphabet = rng.sample(CONSONANTS + VOWELS, rng.choice((2, 2, 3)))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 9)))


def shown(rng: Random, text: str) -> str:
    """Now and then with a capital letter, as names and beginnings of sentences have."""
    return text.capitalize() if rng.random() < 0.06 else text


def counting(rng: Random) -> Problem:
    """How often a letter occurs in a word."""
    text = word(rng) if rng.random() < 0.6 else few_letters(rng)
    letter = rng.choice(text) if rng.random() < 0.85 else rng.choice(CONSONANTS + VOWELS)
    count, marks = 0, []
    for i, other in enumerate(text, start=1):
        count += other == letter
        marks.append(f"{i} {other} {letter} {'yes' if other == letter else 'no'} {count}")
    lines = [f"Count the letter {letter} in {text}.", ", ".join(marks) + ".", f"The count is {count}."]
    return Problem(
        task="counting",
        key=f"{letter} {text}",
        question=phrase(rng, "letters", "count").format(c=letter, w=shown(rng, text)),
        thinking="\n".join(lines),
        answer=f"The letter {letter} appears {count} time{'' if count == 1 else 's'} in {text}.",
    )


def spelt(text: str) -> list[str]:
    """'cab' -> ['1 c', '2 a', '3 b']."""
    return [f"{i} {letter}" for i, letter in enumerate(text, start=1)]


def reversing(rng: Random) -> Problem:
    """A word spelt backwards."""
    text = word(rng)
    letters = spelt(text)
    lines = [
        f"Reverse {text}.",
        f"Forwards: {', '.join(letters)}.",
        f"Backwards: {', '.join(letters[::-1])}.",
    ]
    return Problem(
        task="reversing",
        key=text,
        question=phrase(rng, "letters", "reverse").format(w=shown(rng, text)),
        thinking="\n".join(lines),
        answer=f"{text} reversed is {text[::-1]}",
    )


def length(rng: Random) -> Problem:
    """How many letters a word has."""
    text = word(rng)
    lines = [
        f"Count the letters in {text}.",
        f"Forwards: {', '.join(spelt(text))}.",
        f"The count is {len(text)}.",
    ]
    return Problem(
        task="length",
        key=text,
        question=phrase(rng, "letters", "length").format(w=shown(rng, text)),
        thinking="\n".join(lines),
        answer=f"{text} has {len(text)} letters.",
    )
