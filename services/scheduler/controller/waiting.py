"""How long a step may wait for drafts: the chance that they come in time, against the time that all wait."""

from collections import deque

import numpy as np

_NUM_KEPT = 48
# The table is reckoned anew after so many answers.
_NUM_PER_TABLE = 8
# An answer may take a little longer than one before it did.
_SLACK = 1.1


class Waiting:
    """Remembers how long answers took of late, late ones too."""

    def __init__(self, max_wait_seconds: float) -> None:
        self._most = max_wait_seconds
        self._round_trips: deque[float] = deque(maxlen=_NUM_KEPT)
        self._table: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._num_since_table = 0

    def note(self, seconds: float) -> None:
        """Takes in the time from a question to its answer."""
        self._round_trips.append(seconds)
        self._num_since_table += 1
        if self._num_since_table >= min(_NUM_PER_TABLE, len(self._round_trips)):
            self._table = None

    def best_wait(self, gain_seconds: float) -> float:
        """Returns the wait that wins most if drafts in time save `gain_seconds`; 0 if none wins.

        It wins P(T <= w) gain - E min(T, w) by the answer times T of late. Nobody knows them at first: then
        the wait is no longer than what it could gain.
        """
        if gain_seconds <= 0 or not self._round_trips:
            return min(self._most, max(0.0, gain_seconds))
        waits, chances, costs = self._table or self._reckon()
        worth = chances * gain_seconds - costs
        best = int(np.argmax(worth))
        return float(waits[best]) if worth[best] > 0 else 0.0

    def _reckon(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        times = np.sort(np.array(self._round_trips))
        waits = np.minimum(_SLACK * times, self._most)
        chances = np.searchsorted(times, waits, side="right") / len(times)
        costs = np.minimum(times, waits[:, None]).mean(axis=1)
        self._table, self._num_since_table = (waits, chances, costs), 0
        return self._table
