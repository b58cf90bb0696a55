"""The gateway's peers in its integration tests: a scheduler whose answers are planned, and clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.errors import Unavailable
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import gateway_pb2 as gw
from outrider.v1 import gateway_pb2_grpc, load_pb2, sampling_pb2, scheduler_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.config import Config, Limits
from services.gateway.service import serve
from services.gateway.tokenizer import load_tokenizer

MODEL = Path(__file__).parents[2] / "models" / "tiny"
TOKENIZER = load_tokenizer(MODEL)
END = TOKENIZER.encode("<|im_end|>")[0]


def text_tokens(text: str) -> list[int]:
    """Returns the tokens of a planned answer, its end token included."""
    return [*TOKENIZER.encode(text), END]


class PlannedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Speaks scheduler.proto: answers every sequence with the tokens of `plan`, `step` at a time."""

    def __init__(self, plan: Callable[[pb.Submit], Sequence[int]], *, step: int = 3) -> None:
        self.plan = plan
        self.step = step
        self.numerics_id = "n1"
        self.model = "tiny"
        self.max_model_len = 512
        self.submits: list[pb.Submit] = []
        self.aborted: list[int] = []
        self.error: pb.SequenceError | None = None
        # Cleared: sequences go no further than `pause_after` tokens.
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.pause_after = 0
        self.changed = asyncio.Condition()
        # Submits of each message that brought any.
        self.message_sizes: list[int] = []
        # Says whether it has a group; known once it runs.
        self.set_serving: Callable[[bool], None] = lambda serving: None
        # What it reports, and how often.
        self.load = load_pb2.Load(has_group=True)
        self.load_seconds = 0.5
        self._streams: set[asyncio.Queue] = set()

    async def Serve(self, request_iterator, context) -> AsyncIterator[pb.ServeResponse]:  # noqa: N802
        """Carries the sequences of one gateway."""
        responses: asyncio.Queue[pb.ServeResponse | None] = asyncio.Queue()
        opened = pb.Opened(
            model=self.model,
            numerics_id=self.numerics_id,
            max_model_len=self.max_model_len,
            vocab_size=800,
            block_size=16,
        )
        self._streams.add(responses)
        reading = asyncio.create_task(self._read(request_iterator, responses))
        reporting = asyncio.create_task(self._report(responses))
        try:
            yield pb.ServeResponse(opened=opened, load=self.load)
            while (response := await responses.get()) is not None:
                yield response
            raise Unavailable("killed")
        finally:
            reading.cancel()
            reporting.cancel()
            self._streams.discard(responses)

    async def _report(self, responses: asyncio.Queue) -> None:
        while True:
            await asyncio.sleep(self.load_seconds)
            responses.put_nowait(pb.ServeResponse(load=self.load))

    def break_streams(self) -> None:
        """Breaks all streams."""
        for responses in self._streams:
            responses.put_nowait(None)

    def end_sequence(self, sequence_id: int, error: pb.SequenceError) -> None:
        """Ends a sequence that runs with an error."""
        for responses in self._streams:
            event = pb.SequenceEvent(sequence_id=sequence_id, error=error)
            responses.put_nowait(pb.ServeResponse(events=[event]))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition` holds; it is asked after each message."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def _read(self, requests, responses: asyncio.Queue) -> None:
        running: dict[int, asyncio.Task] = {}
        try:
            async for request in requests:
                if request.submits:
                    self.message_sizes.append(len(request.submits))
                for submit in request.submits:
                    self.submits.append(submit)
                    running[submit.sequence_id] = asyncio.create_task(self._run(submit, responses))
                for abort in request.aborts:
                    self.aborted.append(abort.sequence_id)
                    if abort.sequence_id in running:
                        running[abort.sequence_id].cancel()
                async with self.changed:
                    self.changed.notify_all()
        finally:
            for task in running.values():
                task.cancel()

    async def _run(self, submit: pb.Submit, responses: asyncio.Queue) -> None:
        def put(**event) -> None:
            responses.put_nowait(
                pb.ServeResponse(events=[pb.SequenceEvent(sequence_id=submit.sequence_id, **event)])
            )

        if self.error is not None:
            put(error=self.error)
            return
        sampling = submit.params.sampling
        token_ids = list(self.plan(submit))[: sampling.max_tokens]
        ends = [i for i, token_id in enumerate(token_ids) if token_id in sampling.stop_token_ids]
        token_ids = token_ids[: ends[0] + 1] if ends else token_ids
        sources = [pb.SequenceSourceCounts(source="suffix", num_draft_tokens=4, num_accepted_tokens=2)]
        put(offset=len(submit.output_token_ids), started=pb.SequenceStarted(num_cached_tokens=2))
        for begin in range(len(submit.output_token_ids), len(token_ids), self.step):
            if begin >= self.pause_after:
                await self.flowing.wait()
            new = token_ids[begin : begin + self.step]
            # One token more than is new: repeats are harmless.
            repeated = token_ids[begin - 1 : begin] if begin > len(submit.output_token_ids) else []
            put(
                offset=begin - len(repeated),
                token_ids=[*repeated, *new],
                logprobs=[sampling_pb2.TokenLogprobs(logprob=-t) for t in [*repeated, *new]]
                if sampling.HasField("num_logprobs")
                else [],
                num_steps=1 + begin // self.step,
                sources=sources,
            )
            await asyncio.sleep(0)
        reason = pb.SEQUENCE_FINISH_REASON_STOP if ends else pb.SEQUENCE_FINISH_REASON_LENGTH
        put(offset=len(token_ids), finished=pb.SequenceFinished(reason=reason, num_steps=9, sources=sources))


@asynccontextmanager
async def running_scheduler(scheduler: PlannedScheduler, port: int = 0) -> AsyncIterator[str]:
    """Serves a planned scheduler and yields its address."""
    listen = Listen(grpc_port=port, http_port=0, drain_seconds=0)
    async with RpcServer(listen, service="outrider.v1.SchedulerService") as server:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server.grpc)
        await server.start()
        scheduler.set_serving = server.set_serving
        server.set_serving(True)
        yield f"127.0.0.1:{server.grpc_port}"


@dataclass(kw_only=True)
class RunningGateway:
    """A gateway and a client's view of it."""

    server: RpcServer
    channel: grpc.aio.Channel

    @property
    def stub(self) -> "gateway_pb2_grpc.GatewayServiceAsyncStub":
        """Returns the gateway's methods."""
        return gateway_pb2_grpc.GatewayServiceStub(self.channel)

    async def until_connected(self, expected: list[bool]) -> None:
        """Returns when exactly the schedulers that are expected to be are connected."""
        while True:
            response = await self.stub.GetStats(gw.GetStatsRequest())
            if [scheduler.connected for scheduler in response.schedulers] == expected:
                return

    async def until_health(self, status: int) -> None:
        """Returns when the gateway's health is `status`."""
        watch: Any = health_pb2_grpc.HealthStub(self.channel)
        async for response in watch.Watch(health_pb2.HealthCheckRequest()):
            if response.status == status:
                return


@asynccontextmanager
async def running_gateway(
    *addresses: str, wait: bool = True, limits: Limits | None = None, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Serves a gateway of the tiny model in front of schedulers; returns once it serves, if it is to wait."""
    config = Config(
        **{"schedulers": addresses, "model_dir": MODEL} | settings,
        listen=Listen(grpc_port=0, http_port=0, drain_seconds=0),
        limits=limits or Limits(),
    )
    started: asyncio.Future[RpcServer] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(config, on_started=started.set_result))
        server = await started
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            gateway = RunningGateway(server=server, channel=channel)
            if wait:
                await gateway.until_health(health_pb2.HealthCheckResponse.SERVING)
            yield gateway
        server.begin_shutdown()


@dataclass(kw_only=True)
class Answer:
    """What the deltas of an answer came to."""

    started: gw.Started = field(default_factory=gw.Started)
    deltas: list[gw.Delta] = field(default_factory=list)
    finished: gw.Finished = field(default_factory=gw.Finished)

    @property
    def text(self) -> str:
        """Returns the answer's text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        """Returns the thinking."""
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        """Returns the tokens, whose offsets must leave no gap."""
        token_ids: list[int] = []
        for delta in self.deltas:
            assert delta.offset - self.deltas[0].offset == len(token_ids)
            token_ids.extend(delta.token_ids)
        return token_ids


async def collect(call) -> Answer:
    """Reads a whole answer."""
    answer = Answer()
    async for response in call:
        take(answer, response)
    return answer


def take(answer: Answer, response) -> None:
    """Adds one event to an answer."""
    kind = response.WhichOneof("event")
    if kind == "delta":
        assert answer.started.request_id, "a delta before the start"
        answer.deltas.append(response.delta)
    else:
        getattr(answer, kind).MergeFrom(getattr(response, kind))


def chat(content: str = "hi", **fields) -> gw.ChatRequest:
    """Returns a request with one turn of the user."""
    return gw.ChatRequest(messages=[gw.ChatMessage(role=gw.ROLE_USER, content=content)], **fields)


async def until_read(answer: Answer, num_tokens: int) -> None:
    """Returns when so many tokens of an answer have been read."""
    while True:
        await asyncio.sleep(0.01)
        if len(answer.token_ids) >= num_tokens:
            return
