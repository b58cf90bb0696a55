"""The main loop: receive, schedule, step, process."""

import asyncio
import time
from collections.abc import Callable

import grpc
import structlog

from outrider.rpc.errors import Internal, OutriderError, Unavailable
from outrider.v1 import load_pb2
from services.scheduler import metrics
from services.scheduler.batch import Batch, BatchOutput, GroupFacts
from services.scheduler.config import Config
from services.scheduler.controller import Controller, StepShape
from services.scheduler.counters import Counters
from services.scheduler.drafting import Drafting
from services.scheduler.gateway import Gateway
from services.scheduler.group import Group, GroupChanged
from services.scheduler.learnt import Learnt
from services.scheduler.load import Speed, load_message
from services.scheduler.places import Limits
from services.scheduler.presence import GroupPresence
from services.scheduler.schedule import Schedule
from services.scheduler.times import StepTimes

log = structlog.get_logger()


class Scheduler:
    """Runs all sequences of all gateways on one group."""

    def __init__(
        self,
        config: Config,
        *,
        worker: grpc.aio.Channel,
        drafter: grpc.aio.Channel | None,
        set_serving: Callable[[bool], None],
    ) -> None:
        self.config = config
        self.presence = GroupPresence(patience_seconds=config.group_patience_seconds, set_serving=self._serve)
        self._set_serving = set_serving
        self.speed = Speed()
        self.is_draining = False
        self.times = StepTimes()
        patience = config.step_patience_seconds
        self._group = Group(worker, self.presence, step_patience_seconds=patience, on_lost=self.wake)
        self.counters = Counters()
        self._limits = Limits(
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            prefill_chunk=config.prefill_chunk,
        )
        self._learnt = Learnt(config.state_dir, config.controller)
        self._drafting = Drafting(drafter, config, self.counters) if drafter is not None else None
        self._schedule: Schedule | None = None
        self._gateways: set[Gateway] = set()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def schedule(self) -> Schedule:
        """The sequences of the group; there is one from the moment a group was found."""
        assert self._schedule is not None
        return self._schedule

    async def run(self) -> None:
        """Runs for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._learnt.run())
            if self._drafting is not None:
                tasks.create_task(self._drafting.drafter.run())
            try:
                while True:
                    await self._run_session()
            finally:
                self._group.close()

    async def _run_session(self) -> None:
        """Steps until the group is lost or has become another."""
        try:
            if self._group.is_lost.is_set():
                self._begin(await self._group.open())
            while not self._group.is_lost.is_set():
                await self._receive()
                if self.schedule.owes_step:
                    batch = self._pick()
                    answer = await self._step(batch)
                    self._process(batch, answer)
        except GroupChanged as changed:
            self._begin_anew(changed.facts)

    async def _receive(self) -> None:
        """Waits for something to do, then a moment for drafts."""
        self._close_ended()
        if not self.schedule.has_work:
            self._idle.set()
        if not self.schedule.owes_step:
            await self._work.wait()
            self.times.note_pause()
        self._work.clear()
        self._idle.clear()
        if self._drafting is not None:
            began = time.perf_counter()
            waited = await self._drafting.collect(self.schedule.running.values())
            self.times.count_own(time.perf_counter() - began - waited)
            self.times.note_wait(waited)

    def _pick(self) -> Batch:
        began = time.perf_counter()
        batch = self.schedule.schedule()
        if self._drafting is not None:
            self._drafting.prepare(batch)
        self.times.count_own(time.perf_counter() - began)
        return batch

    async def _step(self, batch: Batch) -> BatchOutput | OutriderError:
        self.times.begin_step()
        try:
            return await self._group.step(batch, on_sent=lambda: self._follow(batch))
        except Internal as failure:
            return failure

    def _follow(self, batch: Batch) -> None:
        if self._drafting is not None:
            self._drafting.follow(batch, self.speed.step_seconds.value or 0.0)

    def _process(self, batch: Batch, answer: BatchOutput | OutriderError) -> None:
        began, shape = time.perf_counter(), batch.shape
        if isinstance(answer, OutriderError):
            log.error("step_failed", num_sequences=len(batch.steps), reason=answer.message)
            self.schedule.fail(batch, answer)
        else:
            self.schedule.process(batch, answer)
            if batch.steps:
                self._learn(batch, shape, answer, began)
                if self._drafting is not None:
                    self._drafting.show(batch, answer)
        self._flush()
        self.times.count_own(time.perf_counter() - began)
        own_seconds = self.times.take_own()
        self.speed.own_seconds.add(own_seconds)
        metrics.scheduling_seconds.observe(own_seconds)

    def _learn(self, batch: Batch, shape: StepShape, answer: BatchOutput, answered_at: float) -> None:
        """Notes what the step took, unless the way to the group broke meanwhile and took its time too."""
        if self._group.is_repeated:
            self.times.note_pause()
            return
        overhead = self.times.end_step(answered_at)
        seconds = self.times.last_step_seconds
        self.schedule.controller.note_step(shape, seconds, answer.num_distinct_experts, overhead)
        num_drafted = sum(len(step.draft_token_ids) for step in batch.steps)
        self.counters.verification_seconds += seconds * num_drafted / shape.num_rows
        self.speed.add_step(
            seconds=seconds,
            exchange_seconds=answer.exchange_seconds,
            num_rows=shape.num_rows,
            max_num_rows=self.schedule.max_num_batched_tokens,
        )
        metrics.observe_step(seconds, answer.num_distinct_experts)

    def _begin(self, facts: GroupFacts) -> None:
        """Takes up the first session, or the same one again."""
        if self._schedule is None:
            self._schedule = Schedule(facts, self._limits, self._take_up(facts), self.counters)

    def _begin_anew(self, facts: GroupFacts) -> None:
        """Computes every sequence again on a group that lost its blocks; on another model none can go on."""
        if not facts.continues(self.schedule.facts):
            self._dismiss(Unavailable("the group behind this scheduler has become another"))
        self.times.note_pause()
        self.schedule.controller = self._take_up(facts)
        self.schedule.void(facts)
        self._flush()

    def _take_up(self, facts: GroupFacts) -> Controller:
        controller = self._learnt.controller_for(facts, max_num_rows=self._limits.max_num_rows(facts))
        if self._drafting is not None:
            self._drafting.begin(facts, controller)
        return controller

    async def drain(self, seconds: float) -> None:
        """Lets running sequences end for so long, then ends the rest so that clients resume elsewhere."""
        self.is_draining = True
        if self._schedule is not None and self._schedule.has_work:
            self._idle.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                log.info("drain_ended", num_sequences=sum(1 for _ in self._schedule.sequences()))
        self._dismiss(Unavailable("the scheduler is shutting down"))

    def open_gateway(self) -> Gateway:
        """Begins a gateway's stream."""
        gateway = Gateway(self.schedule, self.wake)
        self._gateways.add(gateway)
        return gateway

    def close_gateway(self, gateway: Gateway) -> None:
        """Ends a gateway's stream and aborts its sequences."""
        gateway.close()
        self._gateways.discard(gateway)

    def wake(self) -> None:
        """Lets the loop look for work, and whoever waits for it to be done know if there is none."""
        self._work.set()
        if self._schedule is not None and not self._schedule.has_work:
            self._idle.set()

    def load(self) -> load_pb2.Load:
        """Reports the load, and who is present."""
        load = load_message(self._schedule, self.speed)
        load.drafter_connected = self._drafting is not None and self._drafting.drafter.is_connected
        load.has_group = self.presence.is_present
        load.num_groups = self._group.num_groups
        return load

    def figures(self) -> dict[str, float]:
        """Returns what the controller shows of itself; nothing before the first group."""
        return self._schedule.controller.figures() if self._schedule is not None else {}

    def _serve(self, serving: bool) -> None:
        """Follows the group's presence; when it stays away all sequences end, so that gateways move them."""
        self._set_serving(serving)
        if not serving:
            self._end_all(Unavailable("there is no group of workers"))
            self._flush()

    def _dismiss(self, error: Unavailable) -> None:
        self._end_all(error)
        for gateway in self._gateways:
            gateway.dismiss(error)

    def _end_all(self, error: Unavailable) -> None:
        if self._schedule is not None:
            for sequence in list(self._schedule.sequences()):
                self._schedule.end(sequence, error)
            self._close_ended()

    def _close_ended(self) -> None:
        for sequence in self.schedule.take_ended():
            if self._drafting is not None:
                self._drafting.close(sequence)

    def _flush(self) -> None:
        for gateway in self._gateways:
            gateway.outbox.flush()
