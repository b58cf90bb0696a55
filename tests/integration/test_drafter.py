"""The drafter over real gRPC: its protocol, streams that break, and its process."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider import token_hash
from outrider.rpc.channel import connect
from outrider.rpc.config import ConfigError
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.drafter.config import Config
from services.drafter.memory import SuffixMemory
from services.drafter.service import SERVICE, DrafterServicer
from services.drafter.sources import load_sources

TEXT = list(range(100, 200))
TINY = Path(__file__).parents[2] / "models/tiny"
# A hidden vector of the tiny model in bf16.
ROW_BYTES = 2 * 192


class Scheduler:
    """One stream to a drafter, as a scheduler holds it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = drafter_pb2_grpc.DrafterServiceStub(channel).Propose()
        self.sources: list[pb.DraftSource] = []
        self._num_requests = 0

    async def send(self, **fields: Any) -> int:
        self._num_requests += 1
        await self.call.write(pb.ProposeRequest(request_id=self._num_requests, **fields))
        return self._num_requests

    async def read(self) -> pb.ProposeResponse:
        """Returns the next message but the first, which says what sources there are."""
        response = await self.call.read()
        assert isinstance(response, pb.ProposeResponse)
        if self.sources:
            return response
        self.sources = list(response.sources)
        return await self.read()

    async def ask(self, **fields: Any) -> list[pb.Draft]:
        """Returns the drafts that answer a message."""
        request_id = await self.send(**fields)
        drafts: list[pb.Draft] = []
        while True:
            response = await self.read()
            if response.request_id == request_id:
                drafts += response.drafts
                if response.complete:
                    return drafts


@pytest.fixture
def memory() -> SuffixMemory:
    return SuffixMemory(16 << 20)


@asynccontextmanager
async def serving(config: Config, memory: SuffixMemory) -> AsyncIterator[grpc.aio.Channel]:
    async with RpcServer(Listen(grpc_port=0, http_port=0, drain_seconds=0), service=SERVICE) as server:
        servicer = DrafterServicer(load_sources(config, memory))
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
        await server.start()
        async with connect(f"127.0.0.1:{server.grpc_port}") as channel:
            yield channel


@pytest.fixture
async def channel(memory: SuffixMemory) -> AsyncIterator[grpc.aio.Channel]:
    async with serving(Config(), memory) as channel:
        yield channel


async def settled(memory: SuffixMemory, num_bytes: int) -> bool:
    """Waits until a broken stream has been cleaned up: nothing tells a client when."""
    for _ in range(500):
        if memory.num_bytes == num_bytes:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_stream_begins_with_the_sources_that_there_are(channel) -> None:
    first = await Scheduler(channel).call.read()
    assert first == pb.ProposeResponse(sources=[pb.DRAFT_SOURCE_SUFFIX])


async def test_a_message_that_wants_drafts_is_answered_with_their_cost(channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.send(
        opened=[
            {"sequence_id": 1, "tenant": "a", "token_ids": TEXT, "num_prompt_tokens": 50},
            {"sequence_id": 2, "tenant": "a", "token_ids": TEXT[:10], "num_prompt_tokens": 10},
        ],
        closed=[{"sequence_id": 1, "finished": True}],
    )
    request_id = await scheduler.send(
        committed=[{"sequence_id": 2, "offset": 10, "token_ids": TEXT[10:20]}],
        wanted=[
            {"sequence_id": 2, "base_length": 20, "max_num_tokens": 4},
            {"sequence_id": 1, "base_length": 100, "max_num_tokens": 4},
        ],
    )
    answer = await scheduler.read()
    assert (answer.request_id, answer.complete) == (request_id, True)
    (draft,) = answer.drafts
    assert list(draft.token_ids) == TEXT[20:24]
    assert (draft.sequence_id, draft.base_length) == (2, 20)
    assert draft.base_hash == token_hash.extend(token_hash.EMPTY, TEXT[:20])
    assert draft.source == pb.DRAFT_SOURCE_SUFFIX
    assert draft.match_length == 20
    assert len(draft.confidences) == 4
    (time,) = answer.times
    assert (time.source, time.num_drafts) == (pb.DRAFT_SOURCE_SUFFIX, 1)


async def test_a_message_that_wants_nothing_is_not_answered(channel) -> None:
    scheduler = Scheduler(channel)
    await scheduler.send(opened=[{"sequence_id": 1, "token_ids": [1, 2, 1]}])
    await scheduler.send(committed=[{"sequence_id": 1, "offset": 3, "token_ids": [2]}])
    request_id = await scheduler.send(wanted=[{"sequence_id": 1, "base_length": 4, "max_num_tokens": 1}])
    answer = await scheduler.read()
    assert answer.request_id == request_id


async def test_while_a_draft_is_verified_others_are_made_for_what_may_come(channel) -> None:
    scheduler = Scheduler(channel)
    base = [*TEXT, *TEXT[:10]]
    await scheduler.send(opened=[{"sequence_id": 1, "token_ids": base}])
    verified = {"sequence_id": 1, "base_length": len(base), "token_ids": TEXT[10:13], "max_num_tokens": 8}
    await scheduler.send(verifying=[verified], ahead_us=10_000_000)
    ahead = await scheduler.read()
    assert (ahead.request_id, ahead.complete) == (0, False)
    (draft,) = ahead.drafts
    assert draft.base_length == len(base) + 3
    assert draft.base_hash == token_hash.extend(token_hash.EMPTY, [*base, *TEXT[10:13]])
    assert list(draft.token_ids) == TEXT[13:21]


async def test_memory_head_and_model_answer_one_request_each_with_drafts_of_its_own(memory) -> None:
    config = Config(
        sources=("suffix", "model", "head"),
        model_dir=TINY / "draft-model",
        head_dir=TINY / "draft-head",
        target_dir=TINY,
    )
    text = [*range(20, 60), *range(20, 40)]
    params = {"sampling": {"temperature": 0.0, "max_tokens": 100}}
    async with serving(config, memory) as channel:
        scheduler = Scheduler(channel)
        request_id = await scheduler.send(
            opened=[{"sequence_id": 1, "token_ids": text, "num_prompt_tokens": 60, "params": params}],
            features=[{"sequence_id": 1, "offset": 0, "rows": bytes(59 * ROW_BYTES)}],
            wanted=[{"sequence_id": 1, "base_length": 60, "max_num_tokens": 4}],
        )
        answers = [await scheduler.read() for _ in range(3)]
    assert scheduler.sources == [pb.DRAFT_SOURCE_SUFFIX, pb.DRAFT_SOURCE_HEAD, pb.DRAFT_SOURCE_MODEL]
    assert {answer.request_id for answer in answers} == {request_id}
    assert [answer.complete for answer in answers] == [False, False, True]
    # Each at its own pace: the memory is there first, the other two compute in turn.
    for answer, source in zip(answers, scheduler.sources, strict=True):
        (draft,), (time,) = answer.drafts, answer.times
        assert draft.source == time.source == source
        assert draft.base_hash == token_hash.extend(token_hash.EMPTY, text)
        assert 0 < len(draft.token_ids) == len(draft.confidences) <= 4
    assert list(answers[0].drafts[0].token_ids) == [40, 41, 42, 43]


async def test_schedulers_share_the_memory_of_a_tenant_but_not_their_sequences(channel) -> None:
    first, second = Scheduler(channel), Scheduler(channel)
    await first.ask(
        opened=[{"sequence_id": 1, "tenant": "a", "token_ids": TEXT}],
        closed=[{"sequence_id": 1, "finished": True}],
        wanted=[{"sequence_id": 1, "base_length": 100}],
    )
    opened = [
        {"sequence_id": number, "tenant": tenant, "token_ids": TEXT[:10]}
        for number, tenant in ((1, "a"), (2, "b"))
    ]
    wanted = [{"sequence_id": number, "base_length": 10, "max_num_tokens": 3} for number in (1, 2)]
    drafts = await second.ask(opened=opened, wanted=wanted)
    assert [(draft.sequence_id, list(draft.token_ids)) for draft in drafts] == [(1, TEXT[10:13])]


async def test_a_wrong_message_closes_its_own_stream_only(channel, memory) -> None:
    wrong, right = Scheduler(channel), Scheduler(channel)
    for scheduler in (wrong, right):
        await scheduler.ask(
            opened=[{"sequence_id": 1, "token_ids": TEXT}], wanted=[{"sequence_id": 1, "base_length": 100}]
        )
    await wrong.send(opened=[{"sequence_id": 2, "num_prompt_tokens": 1}])
    assert await wrong.call.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = (await wrong.call.trailing_metadata())["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    assert b"opened.num_prompt_tokens" in details
    committed = [{"sequence_id": 1, "offset": 100, "token_ids": TEXT[:10]}]
    (draft,) = await right.ask(
        committed=committed, wanted=[{"sequence_id": 1, "base_length": 110, "max_num_tokens": 2}]
    )
    assert list(draft.token_ids) == TEXT[10:12]


async def test_a_broken_stream_leaves_nothing_behind(channel, memory) -> None:
    scheduler = Scheduler(channel)
    await scheduler.ask(
        opened=[{"sequence_id": 1, "token_ids": TEXT}], wanted=[{"sequence_id": 1, "base_length": 100}]
    )
    assert memory.num_bytes > 0
    scheduler.call.cancel()
    assert await settled(memory, 0)


async def test_a_stream_that_ends_leaves_only_what_finished(channel, memory) -> None:
    scheduler = Scheduler(channel)
    await scheduler.ask(
        opened=[{"sequence_id": number, "tenant": "a", "token_ids": TEXT} for number in (1, 2)],
        closed=[{"sequence_id": 1, "finished": True}],
        wanted=[{"sequence_id": 2, "base_length": 100}],
    )
    await scheduler.call.done_writing()
    while await scheduler.call.read() is not grpc.aio.EOF:
        pass
    assert await settled(memory, memory.bytes_by_tenant["a"])


async def test_a_long_prompt_does_not_hold_up_another_stream(channel) -> None:
    slow, quick = Scheduler(channel), Scheduler(channel)
    num_tokens = 300_000
    for scheduler in (slow, quick):
        await scheduler.ask(wanted=[{"sequence_id": 9, "base_length": 1}])
    await slow.send(opened=[{"sequence_id": 1, "token_ids": [number % 5000 for number in range(num_tokens)]}])
    await quick.ask(wanted=[{"sequence_id": 9, "base_length": 1}])
    wanted = [{"sequence_id": 1, "base_length": num_tokens, "max_num_tokens": 1}]
    num_asked = 1
    while not await slow.ask(wanted=wanted):
        num_asked += 1
    assert num_asked > 1


async def test_each_sequence_is_a_span_of_the_request_that_it_belongs_to(channel) -> None:
    exporter = InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await Scheduler(channel).ask(
        opened=[{"sequence_id": 1, "token_ids": TEXT, "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}],
        closed=[{"sequence_id": 1}],
        wanted=[{"sequence_id": 1, "base_length": 100}],
    )
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "draft"]
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == trace_id
    assert span.attributes is not None
    assert span.attributes["outrider.num_tokens"] == 100


@dataclass(kw_only=True)
class Process:
    """A drafter of its own; `log` is there when it has ended."""

    child: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    http_port: int
    log: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def until_serving(channel: grpc.aio.Channel) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = health_pb2.HealthCheckResponse()
    while answer.status != health_pb2.HealthCheckResponse.SERVING:
        await asyncio.sleep(0.05)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        answer = await check(request, wait_for_ready=True, timeout=60)


@asynccontextmanager
async def process(**settings: object) -> AsyncIterator[Process]:
    """Runs a drafter, and ends it as an orchestrator does."""
    grpc_port, http_port = free_port(), free_port()
    variables = {"GRPC_PORT": grpc_port, "HTTP_PORT": http_port} | settings
    environ = {f"OUTRIDER_DRAFTER_{name}": str(value) for name, value in variables.items()}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.drafter", env=os.environ | environ, stderr=asyncio.subprocess.PIPE
    )
    async with connect(f"127.0.0.1:{grpc_port}") as channel:
        running = Process(child=child, channel=channel, http_port=http_port)
        try:
            await until_serving(channel)
            yield running
        finally:
            child.send_signal(signal.SIGTERM)
            _, log = await child.communicate()
            running.log = log.decode()


async def test_the_process_serves_reports_and_ends_on_sigterm() -> None:
    async with process() as drafter:
        await Scheduler(drafter.channel).ask(
            opened=[{"sequence_id": number, "tenant": "a", "token_ids": TEXT} for number in (1, 2)],
            closed=[{"sequence_id": 1, "finished": True}],
            wanted=[{"sequence_id": 2, "base_length": 100, "max_num_tokens": 4}],
        )
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"http://127.0.0.1:{drafter.http_port}/metrics")).text
    assert 'outrider_drafter_memory_bytes{tenant="a"}' in metrics
    assert 'outrider_drafter_num_drafts_total{source="suffix"} 1.0' in metrics
    assert drafter.child.returncode == 0
    assert str(TEXT[:3])[1:-1] not in drafter.log


async def test_what_was_learnt_is_kept_on_sigterm_and_known_after_the_next_start(tmp_path: Path) -> None:
    async with process(SNAPSHOT_DIR=tmp_path) as drafter:
        await Scheduler(drafter.channel).ask(
            opened=[{"sequence_id": 1, "tenant": "a", "token_ids": TEXT}],
            closed=[{"sequence_id": 1, "finished": True}],
            wanted=[{"sequence_id": 1, "base_length": 100}],
        )
    assert drafter.child.returncode == 0
    async with process(SNAPSHOT_DIR=tmp_path) as drafter:
        scheduler = Scheduler(drafter.channel)
        await scheduler.send(opened=[{"sequence_id": 1, "tenant": "a", "token_ids": TEXT[:10]}])
        # It serves while it still restores.
        drafts: list[pb.Draft] = []
        async with asyncio.timeout(30):
            while not drafts:
                drafts = await scheduler.ask(
                    wanted=[{"sequence_id": 1, "base_length": 10, "max_num_tokens": 3}]
                )
    assert list(drafts[0].token_ids) == TEXT[10:13]


async def test_without_the_suffix_source_no_memory_is_held_nor_kept(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    settings = {"MODEL_DIR": TINY / "draft-model", "TARGET_DIR": TINY, "SNAPSHOT_DIR": folder}
    async with process(SOURCES="model", **settings) as drafter, httpx.AsyncClient() as client:
        metrics = (await client.get(f"http://127.0.0.1:{drafter.http_port}/metrics")).text
    assert "outrider_drafter_num_sequences" in metrics
    assert "outrider_drafter_memory_bytes" not in metrics
    assert not folder.exists()


async def test_a_wrong_setting_stops_the_start_and_is_named() -> None:
    environ = {"OUTRIDER_DRAFTER_MEMORY_BYTES": "lots"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.drafter", env=os.environ | environ, stderr=asyncio.subprocess.PIPE
    )
    _, log = await child.communicate()
    assert child.returncode == 2
    assert log.decode().startswith("outrider drafter: OUTRIDER_DRAFTER_MEMORY_BYTES")


def test_a_directory_without_a_checkpoint_is_named(memory, tmp_path: Path) -> None:
    config = Config(sources=("suffix", "model"), model_dir=tmp_path, target_dir=TINY)
    with pytest.raises(ConfigError, match=f"^OUTRIDER_DRAFTER_MODEL_DIR: .*{tmp_path}"):
        load_sources(config, memory)
