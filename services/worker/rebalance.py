"""Rank 0 improves the placement of experts while the group serves: it acts between steps alone.

    wait -> plan, in a thread -> every rank reads its own moves, in a thread -> all take effect -> plan again
              | nothing is worth it                        | one could not
              +--------------------> wait <----------------+

Steps go on all the time; only what takes effect, a copy within memory, is between two of them.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from outrider.model.placement import Loads, Move, Placement, imbalance
from outrider.model.placement.rebalance import Limits, plan_moves
from services.worker import metrics
from services.worker.group.leader import Leader
from services.worker.loads import LoadWindow
from services.worker.loads_file import save_loads

log = structlog.get_logger()


class Rebalancer:
    """Counts loads and moves experts; only for the thread that steps the model."""

    def __init__(
        self,
        leader: Leader,
        window: LoadWindow,
        *,
        seconds: float,
        max_num_bytes: int,
        num_expert_bytes: int,
        file: Path | None = None,
    ) -> None:
        """Of one rank no more than `max_num_bytes` change between two steps; without `seconds` none do."""
        self.window = window
        self._leader = leader
        self._seconds = seconds
        self._limits = Limits(max_num_moves_per_rank=max_num_bytes // num_expert_bytes)
        self._num_expert_bytes = num_expert_bytes
        self._file = file
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan")
        self._due = time.monotonic() + seconds
        # What is under way, and what follows it.
        self._work: tuple[Future[Any], Callable[[Any], None]] | None = None
        if seconds and not self._limits.max_num_moves_per_rank:
            log.warning("experts_stay", expert_bytes=num_expert_bytes, max_bytes=max_num_bytes)

    @property
    def placement_version(self) -> int:
        """The version that holds for the next step."""
        return self._leader.placement_version

    def before_step(self) -> None:
        """Does what is due."""
        if self._work is None:
            if self._seconds and time.monotonic() >= self._due:
                self._plan()
        elif self._work[0].done():
            (work, then), self._work = self._work, None
            try:
                result = work.result()
            except Exception:
                # No step is worse for it.
                log.exception("experts_not_moved")
                self._wait()
            else:
                then(result)

    def end(self) -> None:
        """Keeps what was counted, and waits for nothing that is under way."""
        self._leader.end()
        self._thread.shutdown()
        self._save(self.window.loads, self.window.num_tokens)

    def _plan(self) -> None:
        placement, loads = self._leader.placement, self.window.loads.copy()
        metrics.placement_imbalance.set(imbalance(placement, loads))
        plan = self._thread.submit(self._find_moves, placement, loads, self.window.num_tokens)
        self._work = plan, partial(self._prepare, loads=loads)

    def _find_moves(self, placement: Placement, loads: Loads, num_tokens: float) -> list[Move]:
        self._save(loads, num_tokens)
        return plan_moves(placement, loads, self._limits)

    def _prepare(self, moves: list[Move], *, loads: Loads) -> None:
        if not moves:
            self._wait()
            return
        began = time.monotonic()
        self._work = self._leader.prepare(moves), partial(self._place, moves=moves, loads=loads, began=began)

    def _place(self, failures: list[str], *, moves: list[Move], loads: Loads, began: float) -> None:
        if failures:
            log.warning("experts_not_moved", reasons=failures)
            self._wait()
            return
        before = imbalance(self._leader.placement, loads)
        with metrics.placing_seconds.time():
            placed_at = time.monotonic()
            self._leader.place(moves)
        after = imbalance(self._leader.placement, loads)
        num_bytes = len(moves) * self._num_expert_bytes
        metrics.placement_imbalance.set(after)
        metrics.num_moved_experts.inc(len(moves))
        metrics.num_moved_bytes.inc(num_bytes)
        log.info(
            "experts_moved",
            version=self.placement_version,
            num_moves=len(moves),
            num_bytes=num_bytes,
            imbalance_before=round(before, 4),
            imbalance_after=round(after, 4),
            read_seconds=round(placed_at - began, 3),
            place_seconds=round(time.monotonic() - placed_at, 4),
        )
        # There may be more to gain.
        self._plan()

    def _wait(self) -> None:
        self._due = time.monotonic() + self._seconds

    def _save(self, loads: Loads, num_tokens: float) -> None:
        if self._file is not None and num_tokens:
            save_loads(self._file, loads, num_tokens)
