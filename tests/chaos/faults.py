"""The faults of a seed: which process of a stack is hit, when and how."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.processes import services_of

# From one fault to the next; some come two at once.
SPACING_SECONDS = (1.0, 4.0)
TOGETHER = 0.15
# Of a process that is only held up: some are taken for lost, some are not.
PAUSE_SECONDS = (0.1, 3.0)

# A process that has just been hit is given so long to be there again.
PATIENCE_SECONDS, LOOK_SECONDS = 10.0, 0.2


class Kind(StrEnum):
    """What happens to a process."""

    KILL = "kill"
    # For good: whoever watches it is to notice.
    STOP = "stop"
    # For a while.
    PAUSE = "pause"
    # As an operator does it: it may finish what it can.
    RESTART = "restart"


SIGNALS = {Kind.KILL: signal.SIGKILL, Kind.RESTART: signal.SIGTERM}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One process hit at one moment, in seconds since the beginning; `seconds` is how long it pauses."""

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        pause = f" for {self.seconds:.1f} s" if self.kind is Kind.PAUSE else ""
        return f"{self.at:6.1f} s  {self.kind} {self.target}{pause}"

    async def strike(self, stack_pid: int) -> bool:
        """Does it, once the process is there to be hit; returns whether it was."""
        for _ in range(round(PATIENCE_SECONDS / LOOK_SECONDS)):
            if (process := services_of(stack_pid).get(self.target)) is not None:
                break
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, SIGNALS.get(self.kind, signal.SIGSTOP))
            if self.kind is Kind.PAUSE:
                await asyncio.sleep(self.seconds)
                os.kill(process.pid, signal.SIGCONT)
        return True


def targets(num_pairs: int, num_ranks: int) -> Iterator[str]:
    """Yields the name of every process of a stack."""
    yield from ("gateway", "drafter")
    for pair in range(num_pairs):
        suffix = f"-{pair + 1}" if pair else ""
        yield from (f"scheduler{suffix}", f"worker{suffix}")
        if num_ranks > 1:
            yield from (f"worker{suffix}.{rank}" for rank in range(num_ranks))


def schedule(seed: int, *, seconds: float, num_pairs: int, num_ranks: int) -> list[Fault]:
    """Returns the faults of so many seconds.

    They are dealt like cards: everything has happened to every process before anything happens again. A rank
    is no service that an operator would restart by itself.
    """
    rng = random.Random(seed)
    deck = [
        (kind, target)
        for target in targets(num_pairs, num_ranks)
        for kind in Kind
        if kind is not Kind.RESTART or "." not in target
    ]
    found, cards, at = [], [], rng.uniform(*SPACING_SECONDS)
    while at < seconds:
        if not cards:
            cards = rng.sample(deck, len(deck))
        kind, target = cards.pop()
        pause = rng.uniform(*PAUSE_SECONDS) if kind is Kind.PAUSE else 0.0
        found.append(Fault(at=at, kind=kind, target=target, seconds=pause))
        if rng.random() >= TOGETHER:
            at += rng.uniform(*SPACING_SECONDS)
    return found
