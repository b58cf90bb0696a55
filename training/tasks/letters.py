"""Counting letters and reversing words: the word is first spelt out, numbered letter by letter."""

from __future__ import annotations

from random import Random

from training.tasks.problem import Problem

COUNT = (
    "How many {c}'s are in {w}?", "How many {c}'s are in '{w}'?", "How many {c}s are in {w}?", "How many {c} are in {w}?", "count {c} in {w}",
    "How many times does {c} appear in {w}?", "Count the letter {c} in {w}.", "How often does the letter {c} occur in {w}?",
    "How many letters {c} are in {w}?", "How many {c}'s are there in {w}?", "How many {c}'s are in the word {w}?", "How many {c}'s does {w} have?",
    "In {w}, how many {c}'s are there?", "Count the {c}'s in {w}.", "How many times does the letter {c} appear in {w}?",
    'How many {c}\'s are in the word "{w}"?', "How many '{c}' are in '{w}'?", "Count how many {c}'s are in {w}.", "how many {c} in {w}",
    "How many {c}'s in {w}?", 'How many times does "{c}" appear in "{w}"?',
)
REVERSE = (
    "Reverse {w}", "Reverse {w}.", "Reverse the word {w}.", "Reverse '{w}'.", "Spell {w} backwards.", "Write {w} backwards.",
    "What is {w} backwards?", "What is {w} reversed?", "Reverse the letters of {w}.", "Reverse the letters in {w}.", "reverse {w}",
    'Reverse the word "{w}".', "Can you reverse {w}?", "Please spell {w} backwards.", "What is {w} spelled backwards?", "Write {w} in reverse.",
)
LENGTH = (
    "How many letters are in {w}?", "How many letters does {w} have?", "How long is the word {w}?", "Count the letters in {w}.",
    "How many letters are in the word {w}?", "How many letters are there in '{w}'?",
)
WORDS = """
strawberry raspberry blueberry apple banana cherry orange lemon melon mango papaya apricot pepper tomato potato carrot cabbage
onion garlic cucumber lettuce spinach broccoli pumpkin mushroom butter cheese coffee bottle kettle window door garden flower
forest mountain river valley island ocean desert meadow summer winter spring autumn monday afternoon midnight tomorrow
yesterday paper pencil eraser notebook library university school teacher student engineer doctor soldier sailor farmer
baker painter writer reader singer dancer runner swimmer elephant giraffe kangaroo crocodile alligator butterfly dragonfly
squirrel rabbit chicken turkey pigeon sparrow penguin dolphin whale shark lobster spider scorpion mississippi tennessee
alabama massachusetts cincinnati london paris berlin madrid rome vienna prague warsaw budapest amsterdam copenhagen
committee address success accommodate necessary occurrence bookkeeper balloon moon noon door floor sleep sheep green tree
speed street coffee toffee assess possess princess happiness weakness banner dinner hammer summer yellow pillow planet world
computer keyboard monitor network server process kernel memory parallel expert token transformer attention gradient
tensor matrix vector scalar python language science physics chemistry biology history geography music piano guitar violin
""".split()
CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"


def word(rng: Random) -> str:
    """A real word, a pronounceable one or a run of letters; doubled letters are common."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(WORDS)
    if kind < 0.65:
        syllables = [rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 5))]
        made = "".join(part + (part[-1] if rng.random() < 0.15 else "") for part in syllables)
        return made + rng.choice(("", "n", "r", "s", "st", "ll"))
    alphabet = rng.sample(CONSONANTS + VOWELS, rng.randint(3, 12))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(3, 12)))


def shown(rng: Random, text: str) -> str:
    """Now and then with a capital letter, as names and beginnings of sentences have."""
    return text.capitalize() if rng.random() < 0.06 else text


def counting(rng: Random) -> Problem:
    """How often a letter occurs in a word."""
    text = word(rng)
    letter = rng.choice(text) if rng.random() < 0.85 else rng.choice(CONSONANTS + VOWELS)
    count, marks = 0, []
    for i, other in enumerate(text, start=1):
        count += other == letter
        marks.append(f"{i} {other} {'yes' if other == letter else 'no'} {count}")
    lines = [f"Count the letter {letter} in {text}.", ", ".join(marks) + ".", f"The count is {count}."]
    return Problem(
        task="counting",
        key=f"{letter} {text}",
        question=rng.choice(COUNT).format(c=letter, w=shown(rng, text)),
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
    lines = [f"Reverse {text}.", f"Forwards: {', '.join(letters)}.", f"Backwards: {', '.join(letters[::-1])}."]
    return Problem(
        task="reversing",
        key=text,
        question=rng.choice(REVERSE).format(w=shown(rng, text)),
        thinking="\n".join(lines),
        answer=f"{text} reversed is {text[::-1]}",
    )


def length(rng: Random) -> Problem:
    """How many letters a word has."""
    text = word(rng)
    lines = [f"Count the letters in {text}.", f"Forwards: {', '.join(spelt(text))}.", f"The count is {len(text)}."]
    return Problem(
        task="length",
        key=text,
        question=rng.choice(LENGTH).format(w=shown(rng, text)),
        thinking="\n".join(lines),
        answer=f"{text} has {len(text)} letters.",
    )
