"""Three kinds of text for many streams at once: predictable, repetitive, unpredictable.

    predictable    the tiny model's own tasks, problems that neither training nor any run before has seen
    repetitive     the agent's conversations, the same ones in every run: the memory has seen them
    unpredictable  the tasks' questions answered at temperature 1.5 with seeds that no run before has used

A stream asks one question after another until it is stopped.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.agent import Conversation, Session
from benchmarks.answers import Ask
from outrider.client import Answer
from training.tasks import WEIGHTS, Problem, Task, draw
from training.tasks.talk import talk
from training.tasks.tools import calculator

# Talk has too few lines to be fresh, and the calculator waits for results.
TASKS: tuple[Task, ...] = tuple(task for task in WEIGHTS if task not in (talk, calculator))
HOT = 1.5
MAX_NUM_TOKENS = 600
# More than a stream writes in any run.
ENDLESS = 2_000


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which stream of which run of which pair of which measurement asks."""

    cell: str = ""
    pair: int = 0
    is_second: bool = False
    stream: int = 0

    def rng(self) -> Random:
        """Draws what no other stream of any run draws."""
        return Random(f"{self.cell} {self.pair} {self.is_second} {self.stream}")


Play = Callable[[Ask, Place], Coroutine[Any, Any, None]]
"""A stream's questions, one after another until it is cancelled."""


def problems(place: Place) -> Iterator[Problem]:
    """Yields fresh problems, task by task; both runs of a pair begin with the same task."""
    rng = place.rng()
    for number in itertools.count(place.pair + place.stream):
        yield draw(rng, held_out=True, task=TASKS[number % len(TASKS)])


async def predictable(ask: Ask, place: Place) -> None:
    """Asks for the tiny model's own tasks."""
    for problem in problems(place):
        await ask(problem.question, temperature=0.0, max_tokens=MAX_NUM_TOKENS)


async def unpredictable(ask: Ask, place: Place) -> None:
    """Asks the same kind of questions, for answers that nobody can foresee."""
    seeds = place.rng()
    for problem in problems(place):
        seed = seeds.randrange(1 << 53)
        await ask(problem.question, temperature=HOT, seed=seed, ignore_eos=True, max_tokens=ENDLESS)


class Repetitive:
    """The requests of an agent that was watched once, asked again and again."""

    def __init__(self) -> None:
        self._requests: list[tuple[list[Any], dict[str, Any]]] = []

    async def watch(self, ask: Ask, played: Sequence[Session]) -> None:
        """Plays conversations side by side and keeps every request."""

        async def note(messages: Any, **options: Any) -> Answer:
            self._requests.append((list(messages), options))
            return await ask(messages, **options)

        async with asyncio.TaskGroup() as tasks:
            for session in played:
                tasks.create_task(Conversation(note).play(session))

    async def __call__(self, ask: Ask, place: Place) -> None:
        """Asks in an order that is the same in both runs of a pair."""
        requests = list(self._requests)
        Random(f"{place.cell} {place.pair} {place.stream}").shuffle(requests)
        for messages, options in itertools.cycle(requests):
            await ask(messages, **options)


def plays(repetitive: Repetitive) -> dict[str, Play]:
    """Returns how streams of each kind are played, by the kind's name; the agent is watched first."""
    return {"unpredictable": unpredictable, "predictable": predictable, "repetitive": repetitive}
