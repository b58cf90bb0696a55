"""How long it is worth waiting for drafts: learnt from how long answers took."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class AnswerTime:
    """The mean and mean deviation of answer times, as TCP estimates its round trips (RFC 6298)."""

    max_wait_seconds: float
    max_step_fraction: float
    mean: float | None = None
    deviation: float = 0.0

    def add(self, seconds: float) -> None:
        """Takes in an answer, a late one too."""
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
        else:
            self.deviation += (abs(seconds - self.mean) - self.deviation) / 4
            self.mean += (seconds - self.mean) / 8

    def deadline(self, step_seconds: float) -> float:
        """Returns how long to wait before a step of such length; 0 if answers come too late anyway."""
        limit = min(self.max_wait_seconds, self.max_step_fraction * step_seconds)
        if self.mean is None:
            return limit
        return 0.0 if self.mean > limit else min(self.mean + 4 * self.deviation, limit)
