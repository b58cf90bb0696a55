"""A little talk: greetings, what the model is, and an honest answer to what it cannot do."""

from __future__ import annotations

from random import Random

from training.tasks.letters import word
from training.tasks.problem import Problem

SKILLS = "I can add, subtract, multiply, compare, sort, count letters, reverse words, and work with units and dates."
GREETINGS = ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Hello there", "Good morning", "Good evening", "hello", "hi", "How are you?")
IDENTITY = ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a model?", "who are you")
ABILITY = ("What can you do?", "Help", "Help me", "What can I ask you?", "What do you know?", "How can you help me?", "what can you do", "Can you help me?")
THANKS = ("Thanks", "Thank you", "Thank you!", "Thanks!", "Great", "Good", "Ok", "Nice", "Great, thanks!", "Bye", "Goodbye")
UNKNOWN = (
    "What is the capital of {w}?", "Who is {w}?", "What is {w}?", "Where is {w}?", "Write a poem about {w}.", "Tell me about {w}.",
    "Explain {w}.", "What is a {w}?", "Why is {w} important?", "Tell me a story about {w}.", "Write a story about {w}.", "When was {w} born?",
    "How do I make {w}?", "Translate {w} to French.", "What is the meaning of {w}?", "Do you like {w}?", "How does {w} work?",
    "Tell me a joke about {w}.", "Who wrote {w}?", "What is the weather in {w}?", "Summarize {w}.",
)


def talk(rng: Random) -> Problem:
    """One line of talk and its reply."""
    kind = rng.choice(("greeting", "identity", "ability", "thanks", "unknown", "unknown", "unknown"))
    subject = ""
    if kind == "greeting":
        question, thinking, answer = rng.choice(GREETINGS), "This is a greeting.", f"Hello! {SKILLS}"
    elif kind == "identity":
        question, thinking = rng.choice(IDENTITY), "The question is about me."
        answer = f"I am a tiny model that thinks in steps. {SKILLS}"
    elif kind == "ability":
        question, thinking, answer = rng.choice(ABILITY), "The question is what I can do.", SKILLS
    elif kind == "thanks":
        question, thinking, answer = rng.choice(THANKS), "This is a friendly word.", "You are welcome!"
    else:
        subject = word(rng)
        subject = subject.capitalize() if rng.random() < 0.5 else subject
        question, thinking = rng.choice(UNKNOWN).format(w=subject), "This is not a task that I know."
        answer = f"I do not know that. {SKILLS}"
    return Problem(task="talk", key=f"{kind} {subject}", question=question, thinking=thinking, answer=answer)
