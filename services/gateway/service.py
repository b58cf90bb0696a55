"""The gateway as gRPC shows it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
from opentelemetry import trace

from outrider.rpc.errors import ResourceExhausted
from outrider.rpc.server import RpcServer
from outrider.rpc.telemetry import traceparent_of
from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import gateway_pb2_grpc
from services.gateway import metrics
from services.gateway.answer import answer
from services.gateway.auth import Keys
from services.gateway.bounds import check_chat, check_generate
from services.gateway.config import Config, Limits
from services.gateway.events import Delta, Event, Started
from services.gateway.grammar_checker import GrammarChecker
from services.gateway.messages import ChatRequest, GenerateRequest, Options
from services.gateway.outlook import Group
from services.gateway.places import Places
from services.gateway.requests import Caller, RequestReader
from services.gateway.scheduler_client import SchedulerClient
from services.gateway.schedulers import Schedulers
from services.gateway.text_model import TextModel

# Conversations are text: far below what services send each other.
MAX_REQUEST_BYTES = 16 * 1024 * 1024


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers clients."""

    def __init__(
        self,
        *,
        keys: Keys,
        reader: RequestReader,
        schedulers: Schedulers,
        model: str,
        limits: Limits,
        unread_seconds: float,
    ) -> None:
        self._keys = keys
        self._reader = reader
        self._schedulers = schedulers
        self._model = model
        self._limits = limits
        num, num_tenants = limits.max_num_requests, keys.num_tenants
        self._places = Places(num, noun="requests in flight", num_tenants=num_tenants)
        # One gateway takes over all that another had: what was accepted is not refused for load.
        self._resumed_places = Places(num, noun="resumed requests in flight", num_tenants=num_tenants)
        self._unread_seconds = unread_seconds

    async def Generate(  # noqa: N802 # type: ignore[override]
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Continues a prompt."""
        with metrics.count_request("Generate"), self._admitted(request.options, context) as caller:
            check_generate(request, self._limits)
            asked = GenerateRequest.from_proto(request)
            group = await self._facts(asked.model, asked.options)
            resolved = await self._reader.read_generate(asked, caller, group)
            await self._send(pb.GenerateResponse, answer(resolved, self._schedulers), context)

    async def Chat(  # noqa: N802 # type: ignore[override]
        self, request: pb.ChatRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Answers a conversation."""
        with metrics.count_request("Chat"), self._admitted(request.options, context) as caller:
            check_chat(request, self._limits)
            asked = ChatRequest.from_proto(request)
            group = await self._facts(asked.model, asked.options)
            resolved = await self._reader.read_chat(asked, caller, group)
            await self._send(pb.ChatResponse, answer(resolved, self._schedulers), context)

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        """Names the model, if a scheduler with it is or was connected."""
        self._caller(context)
        groups = [client.group for client in self._schedulers.clients if client.group is not None]
        models = [
            pb.Model(
                name=group.model,
                numerics_id=group.numerics_id,
                max_model_len=group.max_model_len,
                vocab_size=group.vocab_size,
            )
            for group in groups
            if group.model == self._model
        ]
        return pb.ListModelsResponse(models=models[:1])

    async def GetStats(  # noqa: N802
        self, request: pb.GetStatsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatsResponse:
        """Reports the load of every scheduler."""
        self._caller(context)
        return pb.GetStatsResponse(schedulers=[_stats(client) for client in self._schedulers.clients])

    async def _send(
        self, kind: type, events: AsyncGenerator[Event, None], context: grpc.aio.ServicerContext
    ) -> None:
        """Writes the events as responses. Written rather than yielded: only a write can be given a time."""
        async with aclosing(events):
            async for event in events:
                try:
                    async with asyncio.timeout(self._unread_seconds):
                        await context.write(kind(**_one_of(event)))
                except TimeoutError:
                    reason = f"the client read nothing for {self._unread_seconds:g} s"
                    raise ResourceExhausted(reason) from None

    def _caller(self, context: grpc.aio.ServicerContext) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        received, seconds_left = time.monotonic(), context.time_remaining()
        return Caller(
            tenant=self._keys.tenant_of(str(metadata.get("authorization", ""))),
            received=received,
            deadline=None if seconds_left is None else received + seconds_left,
            traceparent=traceparent_of(trace.get_current_span()),
        )

    @contextmanager
    def _admitted(self, options: pb.GenerationOptions, context: grpc.aio.ServicerContext) -> Iterator[Caller]:
        """Holds a place from before the request is read until it has ended."""
        caller = self._caller(context)
        places = self._resumed_places if options.resume.token_ids else self._places
        with places.one(caller.tenant.name):
            yield caller

    async def _facts(self, model: str, options: Options) -> Group:
        self._reader.check_model(model)
        return await self._schedulers.facts(options.resume.numerics_id if options.resume else "")


def _one_of(event: Event) -> dict[str, Any]:
    """Returns the field of a response that holds the event."""
    if isinstance(event, Started):
        return {"started": event.to_proto()}
    return {"delta" if isinstance(event, Delta) else "finished": event.to_proto()}


def _stats(client: SchedulerClient) -> pb.SchedulerStats:
    return pb.SchedulerStats(
        address=client.address,
        connected=client.connected,
        model=client.group.model if client.group else "",
        numerics_id=client.group.numerics_id if client.group else "",
        load=client.outlook.load,
        takes_requests=client.takes_requests,
        num_requests=client.num_sequences,
        num_known_blocks=client.outlook.num_known_blocks,
    )


async def serve(config: Config, *, on_started: Callable[[RpcServer], None] = lambda server: None) -> None:
    """Serves until the process is told to stop; `on_started` is called when the ports are known."""
    model = await asyncio.to_thread(TextModel.load, config.model_dir, name=config.name)
    keys = Keys.load(config.keys_file)
    checker = GrammarChecker(
        max_num_bytes=config.limits.max_grammar_bytes,
        max_seconds=config.limits.grammar_seconds,
        num_tenants=keys.num_tenants,
    )
    reader = RequestReader(
        model,
        defaults=config.sampling_defaults,
        limits=config.limits,
        checker=checker,
        constrain_tools=config.constrain_tools,
    )
    server = RpcServer(
        config.listen, service="outrider.v1.GatewayService", max_message_bytes=MAX_REQUEST_BYTES
    )
    schedulers = Schedulers(config, on_serving=server.set_serving)
    servicer = GatewayServicer(
        keys=keys,
        reader=reader,
        schedulers=schedulers,
        model=config.name,
        limits=config.limits,
        unread_seconds=config.unread_seconds,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            streams = tasks.create_task(schedulers.run())
            async with server:
                gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server.grpc)
                await server.start()
                on_started(server)
                await server.wait_for_shutdown()
            streams.cancel()
    finally:
        await checker.close()
