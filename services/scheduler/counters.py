"""What the scheduler counts since its start."""

from dataclasses import dataclass, field


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
