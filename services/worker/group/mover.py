"""What every rank does for moves of experts: it reads its own aside, and puts them in place between steps."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from torch._C._distributed_c10d import Store

from outrider.model.feed_forward import StoredExpert
from outrider.model.placement import Move
from outrider.model.transformer import Transformer

LOOK_SECONDS = 0.02

log = structlog.get_logger()


class Mover:
    """Reads in a thread of its own. All ranks are told of the same moves, in the same order."""

    def __init__(self, model: Transformer, store: Store) -> None:
        """By the store the ranks tell rank 0 what they have read."""
        self._model = model
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read")
        self._stopped = threading.Event()
        self._num_rounds = 0
        self._reading: Future[Mapping[Move, StoredExpert]] | None = None

    def prepare(self, moves: Sequence[Move]) -> None:
        """Begins to read what these moves bring to the rank; what was read before is dropped."""
        self._num_rounds += 1
        own = [move for move in moves if self._model.owns(move)]
        self._reading = self._thread.submit(self._read, self._num_rounds, own)

    def place(self, moves: Sequence[Move]) -> None:
        """Lets the moves that were prepared take effect."""
        assert self._reading is not None
        self._model.place(moves, self._reading.result())
        self._reading = None

    def outcome(self) -> "Future[list[str]]":
        """What went wrong on any rank, once all have read; only for rank 0, after `prepare`."""
        return self._thread.submit(self._gather, self._num_rounds)

    def end(self) -> None:
        """Waits for no rank any more."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)

    def _read(self, number: int, moves: Sequence[Move]) -> Mapping[Move, StoredExpert]:
        failure = ""
        try:
            return {move: self._model.read_expert(move) for move in moves}
        except Exception as error:
            failure = f"rank {self._model.ranks.rank}: {type(error).__name__}: {error}"[:500]
            log.exception("experts_not_read", num_moves=len(moves))
            # Nothing of this round is placed.
            return {}
        finally:
            self._store.set(_key(number, self._model.ranks.rank), failure)

    def _gather(self, number: int) -> list[str]:
        keys = [_key(number, rank) for rank in range(self._model.ranks.num_ranks)]
        # To wait in the store would keep others of this process from it.
        while not self._store.check(keys):
            if self._stopped.wait(LOOK_SECONDS):
                return ["the group ends"]
        found = [self._store.get(key).decode() for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return [failure for failure in found if failure]


def _key(number: int, rank: int) -> str:
    return f"read {number} {rank}"
