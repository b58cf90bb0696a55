"""Which sequence makes steps fail: suspects are tried alone, so that it takes no other with it."""

from services.scheduler.sequence import Sequence, SequenceState

MAX_NUM_FAILURES = 3


class Suspects:
    """Counts, for each sequence, the steps that failed with it since it last chose a token.

    A failed step does not say which of its sequences is to blame. The first failure may be chance: all are
    computed again together. One in a second failed step is suspect: it runs alone and without drafts until
    it chooses a token, which clears it, or fails a third time, which proves it guilty. The newest goes first,
    as what has just begun is likeliest to be wrong. A batch that fails although none of its sequences does
    alone makes slow progress, and ends nobody.
    """

    def __init__(self) -> None:
        self._num_failures: dict[Sequence, int] = {}

    def is_guilty_after(self, sequence: Sequence) -> bool:
        """Notes that a step with this sequence failed; returns whether the sequence is to end."""
        self._num_failures[sequence] = self._num_failures.get(sequence, 0) + 1
        return self._num_failures[sequence] >= MAX_NUM_FAILURES

    def clear(self, sequence: Sequence) -> None:
        """Forgets what was counted for a sequence that chose a token or has ended."""
        self._num_failures.pop(sequence, None)

    def first(self) -> Sequence | None:
        """Returns the suspect to run alone: the one being tried, or else the newest."""
        suspects = [item for item, count in self._num_failures.items() if count == MAX_NUM_FAILURES - 1]
        return max(suspects, key=lambda item: (item.state is SequenceState.RUNNING, item.id), default=None)
