"""Which drafts may be made ahead, while the group computes, and in how much of a step's time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Where drafter and group share cores, what a draft made ahead takes slows the step down that it is to save
# waiting behind, and most are made for outcomes that never come: so only for such a part of a step each.
MAX_PART_ON_SHARED_CORES = 0.01
# A step that took longer than this was held up: the next one will not be.
MAX_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Ahead:
    """A fraction of the time of a step: shrinks with drafts that come after it, grows with those in time."""

    shares_cores: bool
    fraction: float = field(init=False)

    def __post_init__(self) -> None:
        """Begins with the most there can be."""
        self.fraction = self.max_fraction

    @property
    def max_fraction(self) -> float:
        """The most there can be; the way back takes the rest."""
        return 0.2 if self.shares_cores else 0.9

    def seconds(self, step_seconds: float) -> float:
        """Returns the time in a step that takes so long."""
        return min(self.fraction * step_seconds, MAX_SECONDS)

    def worthwhile(
        self, sources: Iterable[str], seconds_per_draft: Callable[[str], float], step_seconds: float
    ) -> frozenset[str]:
        """Returns which of the sources may draft ahead in a step that takes so long."""
        if not self.shares_cores:
            return frozenset(sources)
        limit = MAX_PART_ON_SHARED_CORES * step_seconds
        return frozenset([source for source in sources if seconds_per_draft(source) <= limit])

    def note_arrival(self, *, is_late: bool) -> None:
        """Learns from drafts that were made ahead."""
        grown = self.fraction * 0.9 if is_late else self.fraction + 0.01
        self.fraction = min(max(grown, 0.1 * self.max_fraction), self.max_fraction)
