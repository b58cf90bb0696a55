"""How long a source takes for so many questions, learnt from its latest calls."""

from dataclasses import dataclass

# A call counts this much less with each one after it.
DECAY = 0.9
# Where calls differ less in the number of their questions, nothing is learnt of what one more would take.
MIN_VARIANCE = 0.05


@dataclass(slots=True)
class CallTime:
    """A straight line through (n questions, t seconds), given by sums: a fixed part and one per question."""

    calls: float = 0.0
    n: float = 0.0
    nn: float = 0.0
    t: float = 0.0
    nt: float = 0.0

    def add(self, num_questions: int, seconds: float) -> None:
        """Notes a call."""
        self.calls = DECAY * self.calls + 1
        self.n = DECAY * self.n + num_questions
        self.nn = DECAY * self.nn + num_questions * num_questions
        self.t = DECAY * self.t + seconds
        self.nt = DECAY * self.nt + num_questions * seconds

    def num_questions_within(self, seconds: float, most: int) -> int:
        """Returns for how many questions a call has time, up to `most`; one where nothing is known."""
        if seconds <= 0 or not self.calls:
            return min(most, int(seconds > 0))
        fixed, per_question = self._line()
        if fixed + per_question * most <= seconds:
            return most
        return max(0, int((seconds - fixed) / per_question)) if per_question > 0 else 0

    def _line(self) -> tuple[float, float]:
        variance = self.nn / self.calls - (self.n / self.calls) ** 2
        covariance = self.nt / self.calls - self.n * self.t / self.calls**2
        if variance < MIN_VARIANCE:
            return 0.0, self.t / self.n
        per_question = min(max(0.0, covariance / variance), self.t / self.n)
        return (self.t - per_question * self.n) / self.calls, per_question
