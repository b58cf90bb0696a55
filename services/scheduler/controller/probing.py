"""How many draft tokens may be verified that are not known to pay."""

import numpy as np

from services.scheduler.controller.account import Account

_SHARE_OF_TIME = 0.004
# The account holds no more than this many steps' time, and begins with it.
_MAX_NUM_STEPS = 4.0
# No single probe takes more than this part of it: first small steps, then larger ones.
_MAX_PART = 0.25
_LEAST_INTERVAL, _MAX_INTERVAL = 8, 256
_MAX_SIZE = 64


class Probing:
    """Pays for probes, so that all of them together cost no more than they may.

    The predicted loss is laid down before the step, and what it really lost is paid after it; it may have
    won. A probe of what is known to lose, to see whether it still does, waits twice as long after each one.
    """

    def __init__(self) -> None:
        self.num_probes = 0
        self._account = Account(share_of_time=_SHARE_OF_TIME, max_num_steps=_MAX_NUM_STEPS)
        self._laid_down = 0.0
        self._token_seconds = 0.0  # of the choice that the probe took the place of
        self._size = 1
        self._interval = _LEAST_INTERVAL
        self._num_steps_since = 0

    def earn(self, seconds: float) -> None:
        """Credits a step."""
        self._account.earn(seconds)
        self._num_steps_since += 1

    def settle(self, seconds: float, num_output_tokens: int) -> None:
        """Hears what the step took and brought; if it was a probe its loss is known now."""
        if self._laid_down:
            loss = seconds - self._token_seconds * num_output_tokens
            self._account.spend(min(loss, 2 * self._laid_down) - self._laid_down)
            if loss < 0:
                self._interval, self._size = 1, min(2 * self._size, _MAX_SIZE)
            else:
                self._size = 1
            self._laid_down = 0.0

    def try_out(self, losses: np.ndarray, token_seconds: float) -> int | None:
        """Returns the last choice whose loss is affordable, and lays that down; None if there is none.

        `losses` holds the predicted losses in seconds against a choice that takes `token_seconds` per output
        token.
        """
        affordable = np.flatnonzero(losses <= _MAX_PART * self._account.seconds)
        if not len(affordable):
            return None
        choice = int(affordable[-1])
        self._lay_down(float(losses[choice]), token_seconds)
        return choice

    @property
    def is_due(self) -> bool:
        """Whether it is time to check what is known to lose."""
        return self._num_steps_since >= self._interval

    def check_again(self, losses: np.ndarray, token_seconds: float) -> int:
        """Returns the size of a probe of what is known to lose, at its time; 0 if it is not affordable.

        One that won is followed by one of twice the size.
        """
        size = min(self._size, len(losses) - 1)
        if not self.is_due or losses[size] > _MAX_PART * self._account.seconds:
            return 0
        self._interval = min(2 * max(self._interval, _LEAST_INTERVAL // 2), _MAX_INTERVAL)
        self._lay_down(float(losses[size]), token_seconds)
        return size

    def note_paying(self) -> None:
        """Notes that drafts pay: when they stop to, it is checked early whether they do again."""
        self._interval = _LEAST_INTERVAL

    def _lay_down(self, loss: float, token_seconds: float) -> None:
        self._laid_down, self._token_seconds = max(loss, 0.0), token_seconds
        self._account.spend(self._laid_down)
        self._num_steps_since = 0
        self.num_probes += 1
