"""How long a step takes, what the scheduler itself spends on it, and what lies between two of them."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class StepTimes:
    """The times of the step in flight and of the last one, in seconds."""

    last_step_seconds: float = 0.0
    last_own_seconds: float = 0.0
    _began: float = 0.0
    # When the step before was answered, if there was work ever since; waiting for drafts is taken out.
    _answered_at: float | None = None
    _own_seconds: float = 0.0

    def begin_step(self) -> None:
        """Notes that a step is about to be sent."""
        self._began = time.perf_counter()

    def end_step(self, answered_at: float) -> float:
        """Notes its answer; returns what lay between the step before and this one."""
        self.last_step_seconds = answered_at - self._began
        overhead = self._began - self._answered_at if self._answered_at is not None else 0.0
        self._answered_at = answered_at
        return max(0.0, overhead)

    def note_wait(self, seconds: float) -> None:
        """Takes a wait for drafts out of what lies between the steps."""
        if self._answered_at is not None:
            self._answered_at += seconds

    def note_pause(self) -> None:
        """Notes that there was no work, or no group: the next step follows none."""
        self._answered_at = None

    def count_own(self, seconds: float) -> None:
        """Adds to the time that the scheduler itself spends."""
        self._own_seconds += seconds

    def take_own(self) -> float:
        """Returns the time that the scheduler itself has spent since the step before."""
        self.last_own_seconds, self._own_seconds = self._own_seconds, 0.0
        return self.last_own_seconds
