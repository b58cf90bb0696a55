"""What the scheduler counts since its start."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class SourceCounts:
    """Drafts of one source, by how much of them was verified and by what was right of that."""

    num_drafts_by_length: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    num_accepted_tokens_by_position: list[int] = field(default_factory=list)

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Notes the outcome of one verified draft."""
        self.num_drafts_by_length[num_draft_tokens] += 1
        positions = self.num_accepted_tokens_by_position
        positions.extend([0] * (num_draft_tokens - len(positions)))
        for position in range(num_accepted_tokens):
            positions[position] += 1


@dataclass(slots=True)
class Counters:
    """Counts since the start."""

    num_steps: int = 0
    num_output_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # The time of steps, by the part of their rows that were drafts.
    verification_seconds: float = 0.0
    drafts_by_source: dict[str, SourceCounts] = field(default_factory=dict)
    num_prefix_cache_queries: int = 0
    num_prefix_cache_hits: int = 0
    num_preemptions: int = 0

    # Of sequences in steps where a draft was to be had: it was there, or had to be asked for.
    num_draft_hits: int = 0
    num_draft_questions: int = 0
    # By steps: spent waiting for drafts; saved at most, by the time of answers, as all drafts were there.
    draft_wait_seconds: float = 0.0
    draft_wait_saved_seconds: float = 0.0
    # What came from the drafter and could not be used: out of bounds, or with confidences that are none.
    num_unusable_drafts: int = 0

    # The placement of experts that the last step ran under, as the group numbers them.
    placement_version: int = 0

    @property
    def num_accepted_tokens_by_position(self) -> list[int]:
        """Returns how many accepted tokens stood at each place of their draft."""
        totals: list[int] = []
        for counts in self.drafts_by_source.values():
            positions = counts.num_accepted_tokens_by_position
            totals.extend([0] * (len(positions) - len(totals)))
            for position, count in enumerate(positions):
                totals[position] += count
        return totals

    def count_draft(self, source: str, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Notes the outcome of one verified draft."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        self.drafts_by_source.setdefault(source, SourceCounts()).add(num_draft_tokens, num_accepted_tokens)

    def count_unverified(self, source: str) -> None:
        """Notes a draft that was not worth verifying."""
        self.drafts_by_source.setdefault(source, SourceCounts()).num_drafts_by_length[0] += 1
