"""When the draft head is asked: not before it has seen hidden vectors up to the end of the text."""

from dataclasses import dataclass

from services.scheduler.batch import SequenceStep
from services.scheduler.sequence import Sequence

# Of a prompt the head sees no more than its end.
MAX_NUM_PROMPT_FEATURES = 1024
# It has seen so many tokens in a row when it is asked, or all there are: by fewer nobody could judge it.
MIN_NUM_SEEN = 4
# Steps with hidden vectors from when the head is named, and again from when it is asked: a question that won
# is followed by another at once, which goes on from what has been seen.
NUM_STEPS_WITH_FEATURES = 8


@dataclass(slots=True)
class _Turn:
    """How far a sequence is: tokens from `first` to `end` have been shown in a row."""

    first: int = 0
    end: int = 0
    num_steps: int = 0  # steps to come in which hidden vectors are wanted
    is_due: bool = False  # named by the controller and not asked yet


class HeadTurns:
    """Puts the question to the head off to a later step and lets hidden vectors flow meanwhile.

    The controller may name the head in any step, seldom or often; for sequences where it does not, nothing
    flows. A question that is put off is none yet: it is counted when it is asked.
    """

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def sources(self, sequence: Sequence, named: tuple[str, ...]) -> tuple[str, ...]:
        """Returns whom to ask now of those that the controller named now, and the head if it was before."""
        turn = self._turns.get(sequence.id)
        if "head" in named:
            if turn is None:
                turn = self._turns[sequence.id] = _Turn()
            turn.is_due, turn.num_steps = True, NUM_STEPS_WITH_FEATURES
        elif turn is None or not turn.is_due:
            return named
        others = tuple([source for source in named if source != "head"])
        num_to_see = sequence.num_tokens - 1
        if turn.end < num_to_see or turn.end - turn.first < min(MIN_NUM_SEEN, num_to_see):
            return others
        turn.is_due, turn.num_steps = False, NUM_STEPS_WITH_FEATURES
        return (*others, "head")

    def wants_features(self, step: SequenceStep) -> bool:
        """Returns whether hidden vectors of the step are wanted, of a prompt for its last ones."""
        turn = self._turns.get(step.sequence.id)
        if turn is None or step.num_tokens_after <= step.sequence.num_tokens - MAX_NUM_PROMPT_FEATURES:
            return False
        if not turn.num_steps:
            turn.is_due = False  # None came: whoever makes or carries them has too many.
            return False
        turn.num_steps -= 1
        return True

    def note_shown(self, sequence: Sequence, offset: int, num_rows: int) -> None:
        """Notes that the drafter is shown the hidden vectors of so many tokens."""
        turn = self._turns.get(sequence.id)
        if turn is None:
            return
        if turn.first <= offset <= turn.end:
            turn.end = max(turn.end, offset + num_rows)
        else:
            turn.first, turn.end = offset, offset + num_rows

    def forget(self, sequence_id: int) -> None:
        """Forgets a sequence."""
        self._turns.pop(sequence_id, None)

    def clear(self) -> None:
        """Forgets what a drafter was shown that is lost."""
        self._turns.clear()
