"""The scheduler's gRPC face: one stream per gateway."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count

import grpc
from prometheus_client import REGISTRY

from outrider.params import SequenceParams
from outrider.rpc.channel import connect
from outrider.rpc.errors import OutriderError, ResourceExhausted, Unavailable
from outrider.rpc.server import RpcServer
from outrider.v1 import scheduler_pb2 as pb
from outrider.v1 import scheduler_pb2_grpc
from services.scheduler import admission
from services.scheduler.batch import GroupFacts
from services.scheduler.config import Config
from services.scheduler.events import take_event
from services.scheduler.gateway import Gateway
from services.scheduler.loop import Scheduler
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.sequence import FinishReason, Sequence
from services.scheduler.tracing import Trace

SERVICE = "outrider.v1.SchedulerService"
# A gateway hears of the load so often, with no other news too: from silence it knows a stopped process.
LOAD_SECONDS = 0.5
_PHASES = {
    pb.PHASE_THINKING: "thinking",
    pb.PHASE_ANSWER: "answer",
    pb.PHASE_TOOL_ARGUMENTS: "tool_arguments",
}


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves gateways."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ids = count(1)

    async def Serve(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ServeRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Carries all requests of one gateway."""
        # While a group that was there is re-forming its sequences wait, and new ones may.
        if not self._scheduler.presence.is_serving:
            await self._scheduler.presence.wait()
        if self._scheduler.is_draining:
            raise Unavailable("the scheduler is shutting down")
        gateway = self._scheduler.open_gateway()
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(gateway, request_iterator))
                await self._write(gateway, context)
                reader.cancel()
        finally:
            self._scheduler.close_gateway(gateway)

    async def _read(self, gateway: Gateway, requests: AsyncIterator[pb.ServeRequest]) -> None:
        async for request in requests:
            for submit in request.submits:
                self._submit(gateway, submit)
            for abort in request.aborts:
                gateway.abort(abort.sequence_id)
        gateway.is_closing = True
        gateway.outbox.wake()

    async def _write(self, gateway: Gateway, context: grpc.aio.ServicerContext) -> None:
        """Sends news until the gateway is done; waits for it only so long."""
        patience = self._scheduler.config.gateway_patience_seconds
        response = pb.ServeResponse(
            opened=_opened(self._scheduler.schedule.facts), load=self._scheduler.load()
        )
        load_sent = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(patience):
                    await context.write(response)
            except TimeoutError:
                raise ResourceExhausted(f"the gateway read nothing for {patience:g} s") from None
            if gateway.is_done:
                break
            response = await self._next_response(gateway)
            if time.monotonic() - load_sent >= LOAD_SECONDS:
                response.load.CopyFrom(self._scheduler.load())
                load_sent = time.monotonic()
        if gateway.error is not None:
            raise gateway.error

    async def _next_response(self, gateway: Gateway) -> pb.ServeResponse:
        """Returns all news there is, or nothing after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOAD_SECONDS):
                await gateway.outbox.wait()
        began = time.perf_counter()
        response = pb.ServeResponse(events=[take_event(sequence) for sequence in gateway.take()])
        self._scheduler.times.count_own(time.perf_counter() - began)
        return response

    def _submit(self, gateway: Gateway, submit: pb.Submit) -> None:
        facts = self._scheduler.schedule.facts
        params = SequenceParams.from_proto(submit.params)
        timeout = submit.timeout.ToTimedelta().total_seconds() if submit.HasField("timeout") else None
        sequence = self._sequence(gateway, submit, params, facts)
        try:
            gateway.check_unused(submit.sequence_id)
            admission.check_tokens(sequence, params, facts)
            if (end := _end_of_resumed(sequence)) is None:
                self._check_serving()
                schedule = self._scheduler.schedule
                admission.check_load(
                    sequence,
                    timeout,
                    self._scheduler.config,
                    schedule.tenants,
                    self._scheduler.speed,
                    was_accepted=submit.was_accepted,
                )
        except OutriderError as error:
            end = error
        if end is None:
            gateway.add(sequence, timeout)
        else:
            gateway.refuse(sequence, end)

    def _check_serving(self) -> None:
        if self._scheduler.is_draining:
            raise Unavailable("the scheduler is shutting down")
        if not self._scheduler.presence.is_serving:
            raise Unavailable("there is no group of workers")

    def _sequence(
        self, gateway: Gateway, submit: pb.Submit, params: SequenceParams, facts: GroupFacts
    ) -> Sequence:
        num_prompt_tokens = len(submit.prompt_token_ids)
        max_tokens = params.sampling.max_tokens
        limit = facts.max_num_tokens if max_tokens is None else num_prompt_tokens + max_tokens
        max_draft_tokens = self._scheduler.config.max_draft_tokens
        if submit.speculation.HasField("max_draft_tokens"):
            max_draft_tokens = min(max_draft_tokens, submit.speculation.max_draft_tokens)
        return Sequence(
            id=next(self._ids),
            client_id=submit.sequence_id,
            request_id=submit.request_id,
            tenant=submit.tenant,
            tenant_weight=submit.tenant_weight if submit.HasField("tenant_weight") else 1.0,
            priority=submit.priority,
            token_ids=[*submit.prompt_token_ids, *submit.output_token_ids],
            num_prompt_tokens=num_prompt_tokens,
            num_resumed_tokens=len(submit.output_token_ids),
            params=submit.params,
            stop_token_ids=frozenset(params.sampling.stop_token_ids),
            max_num_tokens=min(limit, facts.max_num_tokens),
            max_num_draft_tokens=0 if submit.speculation.disabled else max_draft_tokens,
            outbox=gateway.outbox,
            trace=Trace(
                traceparent=submit.traceparent,
                request_id=submit.request_id,
                num_prompt_tokens=num_prompt_tokens,
            ),
            record=self._scheduler.schedule.controller.new_record(),
            phase_marks={mark.token_id: _PHASES.get(mark.phase, "text") for mark in submit.phase_marks},
        )


async def serve() -> None:
    """Runs the scheduler until it is told to stop, and then until its sequences have ended."""
    config = Config.from_env()
    async with RpcServer(config.listen, service=SERVICE) as server, AsyncExitStack() as channels:
        scheduler = Scheduler(
            config,
            worker=await channels.enter_async_context(connect(config.worker, config.tls)),
            drafter=await channels.enter_async_context(connect(config.drafter, config.tls))
            if config.drafter
            else None,
            set_serving=server.set_serving,
        )
        REGISTRY.register(SchedulerCollector(scheduler.load, scheduler.counters, scheduler.figures))
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(scheduler), server.grpc)
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(scheduler.run())
            await server.wait_for_shutdown()
            await scheduler.drain(config.listen.drain_seconds)
            loop.cancel()


def _end_of_resumed(sequence: Sequence) -> FinishReason | None:
    """Returns why a resumed sequence has no token to come: its stream broke between last token and end."""
    if sequence.num_resumed_tokens and sequence.token_ids[-1] in sequence.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.num_tokens >= sequence.max_num_tokens else None


def _opened(facts: GroupFacts) -> pb.Opened:
    return pb.Opened(
        model=facts.model,
        numerics_id=facts.numerics_id,
        max_model_len=facts.max_num_tokens,
        vocab_size=facts.vocab_size,
        block_size=facts.block_size,
    )
