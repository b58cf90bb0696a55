"""The tasks that the tiny model is trained on, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.tasks.arithmetic import addition, multiplication, subtraction
from training.tasks.letters import counting, length, reversing
from training.tasks.measures import conversion, date, time, weekday
from training.tasks.ordering import comparing, extremes, sorting
from training.tasks.problem import Call, Problem
from training.tasks.stories import word_problem
from training.tasks.talk import talk
from training.tasks.tools import calculator

Task = Callable[[Random], Problem]
WEIGHTS: dict[Task, float] = {
    addition: 12, subtraction: 12, multiplication: 8, comparing: 10, sorting: 13, extremes: 4, counting: 8,
    reversing: 6, length: 2, conversion: 5, weekday: 3, date: 4, time: 4, word_problem: 10, calculator: 9,
    talk: 3,
}  # fmt: skip

__all__ = ["WEIGHTS", "Call", "Problem", "Task", "draw"]


def draw(rng: Random, *, held_out: bool, task: Task | None = None) -> Problem:
    """Draws a problem from one side of the split; talk has too few lines to hold any out."""
    while True:
        chosen = task or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        problem = chosen(rng)
        if problem.is_held_out == held_out or problem.task == "talk":
            return problem
