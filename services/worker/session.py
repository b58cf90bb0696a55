"""The rules of sessions, epochs and step ids: each step is run once and answered as often as it is asked."""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from outrider.rpc.errors import FailedPrecondition, InvalidArgument
from services.worker import metrics
from services.worker.check import check_batch
from services.worker.device_lost import is_lost
from services.worker.lost import DeviceLost, Lost, StepStuck
from services.worker.messages import Batch, BatchOutput, GroupFacts
from services.worker.step import Stepper

# Sessions are compared for equality only, so the voided ones must be remembered.
MAX_NUM_VOIDED_SESSIONS = 4096

log = structlog.get_logger()


class Sessions:
    """Lets one session at a time step the group, through the thread that owns it."""

    def __init__(
        self,
        stepper: Stepper,
        thread: Executor,
        *,
        step_seconds: float,
        set_alive: Callable[[bool], None],
        on_lost: Callable[[], None],
    ) -> None:
        """A step that runs for longer than `step_seconds` is stuck.

        `on_lost` is called once no step can be run any more: the process is to end, and `set_alive` hears
        that it is not alive until then.
        """
        self.epoch = secrets.randbits(64) or 1
        self._step_seconds = step_seconds
        self._set_alive = set_alive
        self._on_lost = on_lost
        # Why no step can be run any more.
        self.lost: Lost | None = None
        self._stepper = stepper
        self._thread = thread
        self._session: int | None = None
        self._voided: dict[int, None] = {}
        # The last step and its answer, which is there once the step is done.
        self._step_id: int | None = None
        self._answer: asyncio.Future[BatchOutput] | None = None
        self._opening = asyncio.Lock()

    @property
    def facts(self) -> GroupFacts:
        """What the group is."""
        return self._stepper.facts

    async def open(self, session: int) -> None:
        """Takes a session up, or begins it and voids the one before.

        Raises FailedPrecondition, or what was lost.
        """
        async with self._opening:
            self._refuse(session)
            if session == self._session:
                return
            if self._answer is not None:
                await asyncio.wait([self._answer])
            await asyncio.get_running_loop().run_in_executor(self._thread, self._stepper.forget_all)
            if self._session is not None:
                self._void(self._session)
            self._session, self._step_id, self._answer = session, None, None
            metrics.num_sequences.set(0)
            log.info("session_opened", session=session, epoch=self.epoch)

    async def step(self, session: int, epoch: int, batch: Batch) -> BatchOutput:
        """Runs a step, or answers the last one again.

        Raises FailedPrecondition, InvalidArgument, or what was lost.
        """
        self._refuse(session)
        if session != self._session or self._opening.locked():
            raise FailedPrecondition(f"session {session} is not open", field="session")
        if epoch != self.epoch:
            raise FailedPrecondition(f"the epoch is {self.epoch}, not {epoch}", field="epoch")
        if self._answer is None or batch.step_id != self._step_id:
            self._check(batch)
            self._step_id = batch.step_id
            self._answer = self._begin(batch)
        output = await asyncio.shield(self._answer)
        metrics.num_sequences.set(len(self._stepper.sequences))
        return output

    def lose(self, error: Lost) -> None:
        """Answers all who wait, and all who come, with the error: nothing is computed any more."""
        if self.lost is not None:
            return
        self.lost = error
        log.critical("worker_lost", reason=error.message)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self._set_alive(False)
        self._on_lost()

    def end(self) -> None:
        """Ends the group; only for the thread that steps it, after the last step."""
        self._stepper.end()

    def _begin(self, batch: Batch) -> asyncio.Future[BatchOutput]:
        """Has a step run; returns what will hold its answer, which a loss gives sooner."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[BatchOutput] = loop.create_future()
        # Nobody may be left to hear of a failure; it is kept for a repeat.
        answer.add_done_callback(_note)
        timer = loop.call_later(self._step_seconds, self._lose_stuck)
        running = loop.run_in_executor(self._thread, self._run, batch)
        running.add_done_callback(lambda ended: self._settle(answer, timer, ended))
        return answer

    def _settle(
        self,
        answer: asyncio.Future[BatchOutput],
        timer: asyncio.TimerHandle,
        ended: asyncio.Future[BatchOutput],
    ) -> None:
        timer.cancel()
        if ended.cancelled():
            answer.cancel()
            return
        error = ended.exception()
        if isinstance(error, Lost):
            self.lose(error)
        if answer.done():
            return
        if error is None:
            answer.set_result(ended.result())
        else:
            answer.set_exception(error)

    def _run(self, batch: Batch) -> BatchOutput:
        try:
            return self._stepper.run(batch)
        except RuntimeError as error:
            if is_lost(error):
                raise DeviceLost(f"the device is lost: {str(error).partition(chr(10))[0]}") from error
            raise

    def _lose_stuck(self) -> None:
        seconds = self._step_seconds
        self.lose(StepStuck(f"step {self._step_id} has run for longer than {seconds:g} s"))

    def _check(self, batch: Batch) -> None:
        """Refuses a batch before anything changes; no step is in flight when it passes."""
        if self._answer is not None and not self._answer.done():
            raise InvalidArgument(f"step {self._step_id} is in flight", field="batch.step_id")
        if self._answer is not None and self._answer.exception() is not None:
            raise FailedPrecondition(f"step {self._step_id} failed: open a new session", field="session")
        if self._step_id is not None and batch.step_id != self._step_id + 1:
            raise InvalidArgument(
                f"the step after {self._step_id} is not {batch.step_id}", field="batch.step_id"
            )
        check_batch(batch, self._stepper.sequences, self.facts)

    def _refuse(self, session: int) -> None:
        if self.lost is not None:
            raise self.lost
        if session in self._voided:
            raise FailedPrecondition(f"session {session} is void: another was opened", field="session")

    def _void(self, session: int) -> None:
        self._voided[session] = None
        if len(self._voided) > MAX_NUM_VOIDED_SESSIONS:
            del self._voided[next(iter(self._voided))]


def _note(answer: asyncio.Future[BatchOutput]) -> None:
    if not answer.cancelled() and (error := answer.exception()) is not None:
        log.error("step_failed", exc_info=error)
