"""Rank 0's steps: the others are told of each before it is computed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from outrider.model.batch import ForwardBatch, ForwardResult
from outrider.model.graphs import StepRunner
from outrider.model.placement import Move, Placement
from services.worker.device_lost import is_lost
from services.worker.group.meeting import Group
from services.worker.group.messages import Kind, Message
from services.worker.group.mover import Mover
from services.worker.lost import GroupLost, LockstepLost


class Leader:
    """Computes steps as its runner does, and has the other ranks compute them too."""

    def __init__(self, runner: StepRunner, group: Group) -> None:
        self.model = runner.model
        self._runner = runner
        self._group = group
        self._mover = Mover(runner.model, group.store)

    @property
    def placement(self) -> Placement:
        """Where the experts are in the next step; only for a model that has any."""
        assert self.model.placement is not None
        return self.model.placement

    @property
    def placement_version(self) -> int:
        """How often that was changed."""
        return self.model.placement.version if self.model.placement else 0

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """Computes a batch. Raises GroupLost, or LockstepLost if it fails here while the others wait."""
        self._send(Message(kind=Kind.STEP, placement_version=self.placement_version, batch=batch))
        with _in_lockstep():
            return self._runner.forward(batch)

    def prepare(self, moves: Sequence[Move]) -> "Future[list[str]]":
        """Has every rank read the weights that moves bring to it, while steps go on.

        Gives what went wrong on any of them, once all have read.
        """
        self._tell(Kind.PREPARE, moves)
        self._mover.prepare(moves)
        return self._mover.outcome()

    def place(self, moves: Sequence[Move]) -> None:
        """Has moves take effect, on every rank before the next step. Each has prepared them.

        Raises as `forward` does: the others have placed them.
        """
        self._tell(Kind.PLACE, moves)
        with _in_lockstep():
            self._mover.place(moves)

    def end(self) -> None:
        """Waits for no moves that are under way."""
        self._mover.end()

    def _tell(self, kind: Kind, moves: Sequence[Move]) -> None:
        self._send(Message(kind=kind, placement_version=self.placement_version, moves=tuple(moves)))

    def _send(self, message: Message) -> None:
        self._group.channel.send(message)


@contextmanager
def _in_lockstep() -> Iterator[None]:
    """Says of an error that the other ranks do not share that the group is lost by it."""
    try:
        yield
    except GroupLost:
        raise
    except Exception as error:
        if is_lost(error):
            raise
        raise LockstepLost("the group could not run the step") from error
