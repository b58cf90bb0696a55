"""How much of a step's time drafts made ahead may take."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class AheadTime:
    """A fraction of the time of a step: shrinks with drafts that come after it, grows with those in time.

    Where the drafter shares cores with the group, what it computes meanwhile slows the step down.
    """

    shares_cores: bool
    fraction: float = field(init=False)

    def __post_init__(self) -> None:
        """Begins with the most there can be."""
        self.fraction = self.max_fraction

    @property
    def max_fraction(self) -> float:
        """The most there can be; the way back takes the rest."""
        return 0.2 if self.shares_cores else 0.9

    def note(self, *, is_late: bool) -> None:
        """Learns from drafts that were made ahead."""
        grown = self.fraction * 0.9 if is_late else self.fraction + 0.01
        self.fraction = min(max(grown, 0.1 * self.max_fraction), self.max_fraction)

    def seconds(self, step_seconds: float) -> float:
        """Returns the time in a step that takes so long."""
        return self.fraction * step_seconds
