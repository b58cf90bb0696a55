"""What a long measurement tells while it runs."""

import sys
import time


class Progress:
    """Says what was done and when the rest will be, judging by what it took so far."""

    def __init__(self, num_parts: int) -> None:
        self._num_parts = num_parts
        self._num_done = 0
        self._began = time.monotonic()

    def step(self, what: str, num_done: int = 1) -> None:
        """Counts parts as done and reports."""
        self._num_done += num_done
        spent = time.monotonic() - self._began
        left = spent * max(0, self._num_parts - self._num_done) / self._num_done
        sys.stderr.write(
            f"[{self._num_done}/{self._num_parts}] {what}; {spent:.0f} s spent, about {left:.0f} s left\n"
        )
        sys.stderr.flush()
