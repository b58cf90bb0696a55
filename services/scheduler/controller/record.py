"""What is learnt of one sequence."""

import math
from dataclasses import dataclass, field

# About so many outcomes are remembered.
_KEPT = 0.9


@dataclass(slots=True)
class SourceRecord:
    """How one source has done for one sequence of late."""

    interval: int  # it is asked in every step, every second one, every fourth, ...
    mean_yield: float = 0.0  # tokens won per question of late, the price of verifying taken off
    num_settled: int = 0  # questions in that mean
    is_open: bool = False  # asked, and nothing came of it yet
    num_accepted: float = 0.0
    num_observed: float = 0.0
    # The logit of its acceptance of late, drawn to one half: 0 where nothing is known.
    recent: float = 0.0

    def note(self, num_accepted: int, num_observed: int) -> None:
        """Takes in the tokens of a draft up to the first wrong one."""
        kept = _KEPT**num_observed
        self.num_accepted = kept * self.num_accepted + num_accepted
        self.num_observed = kept * self.num_observed + num_observed
        self.recent = math.log((self.num_accepted + 1) / (self.num_observed - self.num_accepted + 1))


@dataclass(slots=True)
class Record:
    """The recent past of one sequence; the scheduler keeps it, the controller alone reads and writes it."""

    phase: str = "text"
    by_source: dict[str, SourceRecord] = field(default_factory=dict)
