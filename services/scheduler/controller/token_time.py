"""What a token takes where nothing is drafted: so what drafts and questions take is reckoned in tokens."""

from services.scheduler.controller.facts import StepShape

_OVERHEAD_SHARE = 0.05
_MEASURED_SHARE = 0.25


class TokenTime:
    """Seconds per output token of a step without drafts, with what passes between two steps: 0 at first.

    As predicted for the coming step, and as measured wherever a step verified nothing.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.overhead_seconds = 0.0  # between two steps, waiting for drafts left out, of late

    def predict(self, shape: StepShape, step_seconds: float) -> None:
        """Takes the prediction for a step without drafts."""
        self.seconds = (step_seconds + self.overhead_seconds) / shape.num_base_tokens

    def measure(self, shape: StepShape, step_seconds: float, overhead_seconds: float) -> None:
        """Learns from a step and what passed before it, of which no more than it took itself counts."""
        overhead_seconds = min(overhead_seconds, step_seconds)
        self.overhead_seconds += _OVERHEAD_SHARE * (overhead_seconds - self.overhead_seconds)
        if shape.num_rows == shape.num_sequences or not self.seconds:
            share = _MEASURED_SHARE if self.seconds else 1.0
            seconds = (step_seconds + self.overhead_seconds) / shape.num_base_tokens
            self.seconds += share * (seconds - self.seconds)
