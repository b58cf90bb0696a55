"""The rows of a step: what prompts may have of them, and how sequences take them."""

from collections.abc import Collection
from dataclasses import dataclass

from services.scheduler.controller import Controller, StepShape
from services.scheduler.sequence import Sequence


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


def rows_of_step(
    running: Collection[Sequence],
    controller: Controller,
    *,
    max_num_rows: int,
    num_waiting: int,
    least_for_prompts: int,
) -> Rows:
    """Returns the rows to give away: fewer to prompts that would hold up sequences that choose tokens."""
    rows = Rows(num_left=max_num_rows, num_left_for_prompts=max_num_rows)
    choosing = [sequence for sequence in running if sequence.num_tokens_to_compute == 1]
    if choosing and (num_waiting or len(choosing) < len(running)):
        most = controller.prefill_rows(shape_of(choosing), max_num_rows - len(choosing))
        rows.num_left_for_prompts = max(most, least_for_prompts)
    return rows


def shape_of(choosing: Collection[Sequence]) -> StepShape:
    """Returns the shape of a step in which these sequences choose tokens, without drafts."""
    return StepShape(
        num_rows=len(choosing),
        num_sequences=len(choosing),
        num_context_tokens=sum([len(sequence.token_ids) for sequence in choosing]),
        num_choosing=len(choosing),
    )
