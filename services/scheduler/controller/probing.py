"""What may be tried that is not known to pay: an account that a small part of all time flows into."""

import numpy as np

_SHARE_OF_TIME = 0.004
# The account holds no more than this many steps' time, and begins with it.
_MAX_NUM_STEPS = 4.0
# No single probe takes more than this part of it: first small steps, then larger ones.
_MAX_PART = 0.25
_LEAST_INTERVAL, _MAX_INTERVAL = 8, 256
_STEP_SHARE = 0.05


class Probing:
    """Pays for probes by their predicted loss, so that all of them together cost no more than they may.

    A probe of what is known to lose, to see whether it still does, waits twice as long after each one.
    """

    def __init__(self) -> None:
        self.num_probes = 0
        self._account: float | None = None
        self._step_seconds = 0.0
        self._interval = _LEAST_INTERVAL
        self._num_steps_since = 0

    def earn(self, seconds: float) -> None:
        """Credits a step."""
        if self._account is None:
            self._step_seconds, self._account = seconds, _MAX_NUM_STEPS * seconds
        self._step_seconds += _STEP_SHARE * (min(seconds, 4 * self._step_seconds) - self._step_seconds)
        most = _MAX_NUM_STEPS * self._step_seconds
        self._account = min(most, self._account + _SHARE_OF_TIME * min(seconds, most))
        self._num_steps_since += 1

    def try_out(self, losses: np.ndarray) -> int:
        """Returns the last of the growing choices whose loss is affordable, and pays; 0 for none.

        `losses` holds the predicted loss in seconds of choice 0 (none), 1, 2, ...
        """
        affordable = np.flatnonzero(losses <= _MAX_PART * (self._account or 0.0))
        choice = int(affordable[-1]) if len(affordable) else 0
        if choice:
            self._pay(float(losses[choice]))
        return choice

    def check_again(self, loss: float) -> bool:
        """Returns whether it is time for a small probe of what is known to lose, and pays."""
        if self._num_steps_since < self._interval or loss > _MAX_PART * (self._account or 0.0):
            return False
        self._interval = min(2 * self._interval, _MAX_INTERVAL)
        self._pay(loss)
        return True

    def note_paying(self) -> None:
        """Notes that drafts pay: when they stop to, it is checked early whether they do again."""
        self._interval = _LEAST_INTERVAL

    def _pay(self, loss: float) -> None:
        assert self._account is not None
        self._account -= max(0.0, loss)
        self._num_steps_since = 0
        self.num_probes += 1
