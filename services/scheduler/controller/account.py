"""What may be spent on trying: an account that a small part of all time flows into."""

_STEP_SHARE = 0.05


class Account:
    """Seconds to spend: at first so many steps' worth, and never more than that."""

    def __init__(self, *, share_of_time: float, max_num_steps: float) -> None:
        self._share_of_time = share_of_time
        self._max_num_steps = max_num_steps
        self._step_seconds = 0.0  # of late
        self.seconds = 0.0  # none before the first step

    def earn(self, step_seconds: float) -> None:
        """Credits a step; one that was held up earns no more than is usual."""
        if not self._step_seconds:
            self._step_seconds, self.seconds = step_seconds, self._max_num_steps * step_seconds
        usual = min(step_seconds, 4 * self._step_seconds)
        self._step_seconds += _STEP_SHARE * (usual - self._step_seconds)
        most = self._max_num_steps * self._step_seconds
        self.seconds = min(most, self.seconds + self._share_of_time * min(step_seconds, most))

    def spend(self, seconds: float) -> None:
        """Takes seconds out, or, where they are negative, gives them back."""
        self.seconds -= seconds
