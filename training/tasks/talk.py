"""A little talk: greetings, what the model is, and an honest answer to what it cannot do."""

from __future__ import annotations

from random import Random

from training.tasks.letters import word
from training.tasks.phrasings import phrase
from training.tasks.problem import Problem

SKILLS = (
    "I can add, subtract, multiply, compare, sort, count letters, reverse words, "
    "and work with units and dates."
)


def talk(rng: Random) -> Problem:
    """One line of talk and its reply."""
    kind = rng.choice(("greeting", "identity", "ability", "thanks", "unknown", "unknown", "unknown"))
    subject = ""
    if kind == "greeting":
        question, thinking, answer = (
            phrase(rng, "talk", "greetings"),
            "This is a greeting.",
            f"Hello! {SKILLS}",
        )
    elif kind == "identity":
        question, thinking = phrase(rng, "talk", "identity"), "The question is about me."
        answer = f"I am a tiny model that thinks in steps. {SKILLS}"
    elif kind == "ability":
        question, thinking, answer = phrase(rng, "talk", "ability"), "The question is what I can do.", SKILLS
    elif kind == "thanks":
        question, thinking, answer = (
            phrase(rng, "talk", "thanks"),
            "This is a friendly word.",
            "You are welcome!",
        )
    else:
        subject = word(rng)
        subject = subject.capitalize() if rng.random() < 0.5 else subject
        question, thinking = (
            phrase(rng, "talk", "unknown").format(w=subject),
            "This is not a task that I know.",
        )
        answer = f"I do not know that. {SKILLS}"
    return Problem(task="talk", key=f"{kind} {subject}", question=question, thinking=thinking, answer=answer)
