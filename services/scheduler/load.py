"""What the scheduler counts: for its metrics, for the gateways' choice, and to predict."""

from dataclasses import dataclass, field

# Of late means about the last twenty steps.
_SHARE = 0.1


@dataclass(slots=True)
class Recent:
    """A mean that forgets exponentially; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        """Takes in one more value."""
        self.value = value if self.value is None else self.value + _SHARE * (value - self.value)


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    num_steps: int = 0
    num_output_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_by_position: list[int] = field(default_factory=list)
    num_prefix_cache_queries: int = 0
    num_prefix_cache_hits: int = 0
    num_preemptions: int = 0

    def count_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Notes the outcome of one verified draft."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        positions = self.num_accepted_tokens_by_position
        positions.extend([0] * (num_draft_tokens - len(positions)))
        for position in range(num_accepted_tokens):
            positions[position] += 1


@dataclass(slots=True)
class Speed:
    """How fast things go of late."""

    step_seconds: Recent = field(default_factory=Recent)
    own_seconds: Recent = field(default_factory=Recent)
    rows_per_second: Recent = field(default_factory=Recent)

    def add_step(self, *, seconds: float, num_rows: int, max_num_rows: int) -> None:
        """Notes a step; only one that is at least half full says how fast prompts can be computed."""
        self.step_seconds.add(seconds)
        if 2 * num_rows >= max_num_rows and seconds > 0:
            self.rows_per_second.add(num_rows / seconds)
