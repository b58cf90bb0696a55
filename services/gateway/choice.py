"""Which pair of scheduler and group runs a sequence: by cached prefix and load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

# Before anything was measured: a step, and how many tokens of a prompt make one take as long again.
_STEP_SECONDS = 0.01
_NUM_ROWS_OF_A_STEP = 32


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What a sequence would meet at a pair."""

    # Its own tokens that are not cached, and those that wait already.
    num_own_tokens: int
    num_waiting_tokens: int
    # Sequences there, running and waiting.
    num_requests: int
    # How fast the pair is of late; 0: not measured yet.
    step_seconds: float
    rows_per_second: float
    # Sequences sent there so far.
    num_sent: int

    @property
    def seconds(self) -> float:
        """Returns the time after which the first token may be expected, in a measured pair.

        The step in flight ends first; then all that waits is computed, and the sequence's own tokens that
        are not cached. Each sequence that is there already counts as one step: it takes its rows of every
        step and makes all tokens after the first slower. So a cached prefix draws sequences only until so
        many more are there than elsewhere as computing it would take steps.
        """
        num_tokens = self.num_waiting_tokens + self.num_own_tokens
        return num_tokens / self.rows_per_second + self.step_seconds * (1 + self.num_requests)


def best(prospects: Sequence[Prospect]) -> int:
    """Returns the place of the best of at least one prospect.

    What is within half a step of the least time is equal to it; among equal ones that which was sent the
    fewest sequences is taken, so that they take turns.
    """
    measured = _measured(prospects)
    first = min(measured, key=lambda prospect: prospect.seconds)
    limit = first.seconds + first.step_seconds / 2
    equal = [place for place, prospect in enumerate(measured) if prospect.seconds <= limit]
    return min(equal, key=lambda place: measured[place].num_sent)


def _measured(prospects: Sequence[Prospect]) -> list[Prospect]:
    """Takes a pair that has measured nothing yet to be as fast as the fastest: so it is tried."""
    step = min((p.step_seconds for p in prospects if p.step_seconds), default=_STEP_SECONDS)
    rows = max(p.rows_per_second for p in prospects) or _NUM_ROWS_OF_A_STEP / step
    return [
        replace(p, step_seconds=p.step_seconds or step, rows_per_second=p.rows_per_second or rows)
        for p in prospects
    ]
