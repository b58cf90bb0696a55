"""The rows of a step, as sequences take them."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Rows:
    """How many rows are left, and how many of them prompts may take beside sequences that choose tokens."""

    num_left: int
    num_left_for_prompts: int

    def take(self, num_wanted: int, *, num_reserved: int = 0) -> int:
        """Gives a sequence its rows, at least one; more than one make a prompt of it, whatever they hold."""
        count = min(num_wanted, self.num_left - num_reserved)
        assert count > 0
        if num_wanted > 1:
            count = max(1, min(count, self.num_left_for_prompts))
            self.num_left_for_prompts -= count
        self.num_left -= count
        return count
