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
    addition: 8, subtraction: 10, multiplication: 5, comparing: 14, sorting: 17, extremes: 3, counting: 13,
    reversing: 6, length: 2, conversion: 5, weekday: 4, date: 5, time: 3, word_problem: 8, calculator: 5,
    talk: 2,
}  # fmt: skip

__all__ = ["WEIGHTS", "Call", "Problem", "Task", "draw"]


def draw(rng: Random, *, held_out: bool, task: Task | None = None) -> Problem:
    """Draws a problem from one side of the split; talk has too few lines to hold any out."""
    while True:
        chosen = task or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        problem = chosen(rng)
        if problem.is_held_out == held_out or problem.task == "talk":
            return problem
