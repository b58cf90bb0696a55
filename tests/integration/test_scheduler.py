"""A real scheduler between a gateway's stream and a group server whose tokens are a pure function."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry, generate_latest

from outrider import token_hash
from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import drafter_pb2, drafter_pb2_grpc, sampling_pb2, scheduler_pb2_grpc, worker_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.scheduler.config import Config
from services.scheduler.loop import Scheduler
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.service import SERVICE, SchedulerServicer
from tests.unit.scheduler.group_server import GroupServer, StreamCut
from tests.unit.scheduler.reference_group import ReferenceGroup, alone

VOCAB_SIZE = 50


@asynccontextmanager
async def serving(
    add: Callable[[grpc.aio.Server], None], port: int = 0
) -> AsyncIterator[tuple[int, grpc.aio.Server]]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    add(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port, server
    finally:
        await server.stop(None)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Client:
    """What a gateway does: one stream, events gathered per sequence."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Serve()
        self.tokens: dict[int, list[int]] = {}
        self.first_offset: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.ends: dict[int, Any] = {}
        self.opened: pb.Opened | None = None

    async def submit(self, sequence_id: int, prompt: list[int], **fields: Any) -> None:
        await self.call.write(pb.ServeRequest(submits=[make_submit(sequence_id, prompt, **fields)]))

    async def read_until(self, done: Callable[[], bool]) -> None:
        while not done():
            response = await self.call.read()
            assert isinstance(response, pb.ServeResponse)
            self.take(response)

    async def read_to_end(self, *sequence_ids: int) -> None:
        await self.read_until(lambda: all(sequence_id in self.ends for sequence_id in sequence_ids))

    def take(self, response: pb.ServeResponse) -> None:
        if response.HasField("opened"):
            self.opened = response.opened
        for event in response.events:
            tokens = self.tokens.setdefault(event.sequence_id, [])
            first = self.first_offset.setdefault(event.sequence_id, event.offset)
            assert event.sequence_id not in self.ends
            assert event.offset == first + len(tokens)
            tokens.extend(event.token_ids)
            if event.HasField("started"):
                assert event.sequence_id not in self.started
                self.started[event.sequence_id] = event.started.num_cached_tokens
            if (end := event.WhichOneof("end")) is not None:
                self.ends[event.sequence_id] = getattr(event, end)


def make_submit(
    sequence_id: int, prompt: list[int], *, seed: int = 0, max_tokens: int = 20, timeout: float | None = None,
    resumed: tuple[int, ...] = (), stop: tuple[int, ...] = (), tenant: str = "a",
) -> pb.Submit:  # fmt: skip
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    submit = pb.Submit(
        sequence_id=sequence_id, request_id=f"request-{sequence_id}", tenant=tenant,
        prompt_token_ids=prompt, output_token_ids=resumed,
        params=sampling_pb2.SequenceParams(sampling=sampling, seed=seed),
    )  # fmt: skip
    if timeout is not None:
        duration = duration_pb2.Duration()
        duration.FromNanoseconds(round(timeout * 1e9))
        submit.timeout.CopyFrom(duration)
    return submit


def expected(prompt: list[int], *, seed: int = 0, max_tokens: int = 20) -> list[int]:
    tokens = alone(prompt, seed, num_tokens=len(prompt) + max_tokens, stop=frozenset(), vocab_size=VOCAB_SIZE)
    return tokens[len(prompt) :]


class Stack:
    """A scheduler, its group and a client."""

    def __init__(
        self,
        group: GroupServer,
        group_server: grpc.aio.Server,
        group_port: int,
        scheduler: Scheduler,
        server: RpcServer,
    ) -> None:
        self.group, self.group_server, self.group_port = group, group_server, group_port
        self.scheduler, self.server = scheduler, server
        self.channel = connect(f"127.0.0.1:{server.grpc_port}")
        self.client = Client(self.channel)

    async def until_idle(self) -> None:
        """Waits until there is nothing to do, all blocks are back, and the group has forgotten all."""
        await until(lambda: not self.scheduler.schedule.has_work)
        self.group.may_step.set()
        await until(
            lambda: not (self.scheduler.schedule.blocks.num_free_blocks < self.group.group.opened.num_blocks)
        )
        await until(lambda: not self.group.group.known)
        self.scheduler.schedule.check()


@asynccontextmanager
async def stack(
    *, drafter_port: int | None = None, num_blocks: int = 64, **settings: Any
) -> AsyncIterator[Stack]:
    group = GroupServer(
        ReferenceGroup(
            vocab_size=VOCAB_SIZE,
            num_blocks=num_blocks,
            max_num_batched_tokens=32,
            max_model_len=200,
        )
    )
    add = lambda server: worker_pb2_grpc.add_WorkerServiceServicer_to_server(group, server)  # noqa: E731
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    async with serving(add) as (port, group_server), RpcServer(listen, service=SERVICE) as server:
        config = Config(worker=f"127.0.0.1:{port}", **settings)
        async with connect(config.worker) as worker:
            drafter = connect(f"127.0.0.1:{drafter_port}") if drafter_port else None
            scheduler = Scheduler(config, worker=worker, drafter=drafter, set_serving=server.set_serving)
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
                SchedulerServicer(scheduler), server.grpc
            )
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                loop = tasks.create_task(scheduler.run())
                stacked = Stack(group, group_server, port, scheduler, server)
                try:
                    yield stacked
                finally:
                    group.may_step.set()
                    loop.cancel()
                    await stacked.channel.close()
            if drafter is not None:
                await drafter.close()


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


async def test_a_sequence_gets_its_tokens_and_the_stream_names_the_model() -> None:
    async with stack() as s:
        await s.client.submit(7, PROMPT, seed=5)
        await s.client.read_to_end(7)
        assert s.client.tokens[7] == expected(PROMPT, seed=5)
        assert s.client.ends[7].reason == pb.SEQUENCE_FINISH_REASON_LENGTH
        assert s.client.opened is not None
        assert s.client.opened.numerics_id == "reference-1"
        assert s.client.started[7] == 0
        await s.until_idle()


async def test_many_sequences_at_once_get_the_tokens_they_would_get_alone() -> None:
    async with stack(num_blocks=20) as s:
        prompts = {number: [number % 3, *PROMPT[: number % 10]] for number in range(20)}
        for number, prompt in prompts.items():
            await s.client.submit(number, prompt, seed=number)
        await s.client.read_to_end(*prompts)
        for number, prompt in prompts.items():
            assert s.client.tokens[number] == expected(prompt, seed=number)
        await s.until_idle()


async def test_an_equal_prompt_is_found_in_the_cache_of_its_tenant_only() -> None:
    async with stack() as s:
        for number, tenant in enumerate("aab"):
            await s.client.submit(number, PROMPT, tenant=tenant)
            await s.client.read_to_end(number)
        assert s.client.started == {0: 0, 1: 8, 2: 0}


async def test_a_resumed_sequence_goes_on_behind_its_old_tokens() -> None:
    async with stack() as s:
        tokens = expected(PROMPT)
        await s.client.submit(1, PROMPT, resumed=tuple(tokens[:8]))
        await s.client.read_to_end(1)
        assert s.client.first_offset[1] == 8
        assert s.client.tokens[1] == tokens[8:]


async def test_a_resumed_sequence_that_was_complete_ends_at_once() -> None:
    async with stack() as s:
        tokens = expected(PROMPT)
        await s.client.submit(1, PROMPT, resumed=tuple(tokens))
        await s.client.read_to_end(1)
        assert s.client.ends[1].reason == pb.SEQUENCE_FINISH_REASON_LENGTH
        assert s.client.tokens[1] == []


async def test_a_stop_token_is_the_last_token() -> None:
    async with stack() as s:
        tokens = expected(PROMPT)
        await s.client.submit(1, PROMPT, stop=(tokens[5],))
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == tokens[: tokens.index(tokens[5]) + 1]
        assert s.client.ends[1].reason == pb.SEQUENCE_FINISH_REASON_STOP


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "field"),
    [
        ([], {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ([VOCAB_SIZE], {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ([1] * 200, {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ([1], {"stop": (VOCAB_SIZE,)}, grpc.StatusCode.INVALID_ARGUMENT, "sampling.stop_token_ids"),
        ([1], {"timeout": 0.0}, grpc.StatusCode.DEADLINE_EXCEEDED, ""),
    ],
)
async def test_a_bad_sequence_is_refused_and_harms_no_other(
    prompt: list[int], fields: dict, code: grpc.StatusCode, field: str
) -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT)
        await s.client.submit(2, prompt, **fields)
        await s.client.read_to_end(1, 2)
        error = s.client.ends[2]
        assert isinstance(error, pb.SequenceError)
        assert (error.code, error.field) == (code.value[0], field)
        assert s.client.tokens[1] == expected(PROMPT)
        await s.until_idle()


async def test_a_prompt_that_no_number_of_free_blocks_could_hold_is_refused() -> None:
    async with stack(num_blocks=4) as s:
        await s.client.submit(1, [1] * 16)
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_more_waiting_sequences_than_allowed_are_told_when_to_try_again() -> None:
    async with stack(max_num_waiting=2, max_num_seqs=1) as s:
        s.group.may_step.clear()
        for number in range(6):
            await s.client.submit(number, PROMPT)
        await s.client.read_until(lambda: len(s.client.ends) == 3)
        for error in s.client.ends.values():
            assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
            assert error.retry_delay.seconds >= 1
        await s.client.submit(6, PROMPT, resumed=(expected(PROMPT)[0],))
        s.group.may_step.set()
        await s.client.read_to_end(*range(7))
        assert s.client.tokens[6] == expected(PROMPT)[1:]


async def test_a_passed_deadline_ends_a_sequence_while_its_step_is_in_flight() -> None:
    async with stack() as s:
        s.group.may_step.clear()
        await s.client.submit(1, PROMPT, timeout=0.2)
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        await s.until_idle()


@pytest.mark.parametrize("state", ["waiting", "in flight", "running"])
async def test_a_broken_gateway_stream_gives_all_blocks_back(state: str) -> None:
    async with stack(max_num_seqs=1) as s:
        if state == "in flight":
            s.group.may_step.clear()
        for number in range(2 if state == "waiting" else 1):
            await s.client.submit(number, PROMPT, max_tokens=150)
        if state == "in flight":
            await s.group.has_been_asked.wait()
        else:
            await s.client.read_until(lambda: bool(s.client.tokens.get(0)))
        s.client.call.cancel()
        await s.until_idle()


async def test_an_aborted_sequence_says_nothing_more_and_the_others_go_on() -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT, max_tokens=150)
        await s.client.submit(2, PROMPT, max_tokens=100)
        await s.client.read_until(lambda: len(s.client.tokens.get(1, [])) > 3)
        await s.client.call.write(pb.ServeRequest(aborts=[pb.Abort(sequence_id=1)]))
        await s.client.read_to_end(2)
        assert s.client.tokens[2] == expected(PROMPT, max_tokens=100)
        assert 1 not in s.client.ends
        await s.until_idle()


async def test_a_gateway_that_asks_for_nothing_more_gets_what_it_asked_for() -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT)
        await s.client.call.done_writing()
        async for response in s.client.call:
            s.client.take(response)
        assert s.client.tokens[1] == expected(PROMPT)
        assert await s.client.call.code() is grpc.StatusCode.OK


async def test_a_cut_stream_to_the_group_repeats_the_step_in_flight() -> None:
    async with stack() as s:

        def cut_now_and_then(batch) -> None:
            if batch.step_id % 5 == 0 and s.group.num_repeats < batch.step_id // 5:
                raise StreamCut("the stream breaks after the step has run")

        s.group.before_answer = cut_now_and_then
        await s.client.submit(1, PROMPT, seed=3)
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == expected(PROMPT, seed=3)
        assert s.group.num_repeats > 0
        await s.until_idle()


async def test_a_new_epoch_changes_no_token() -> None:
    async with stack() as s:

        def lose_everything_now_and_then(batch) -> None:
            if s.group.num_steps in (3, 9):
                s.group.lose_everything()
                raise StreamCut("the group restarts")

        s.group.before_answer = lose_everything_now_and_then
        for number in range(4):
            await s.client.submit(number, PROMPT, seed=number)
        await s.client.read_to_end(*range(4))
        for number in range(4):
            assert s.client.tokens[number] == expected(PROMPT, seed=number)
        assert s.group.epoch > 1
        await s.until_idle()


async def test_a_session_taken_over_by_another_scheduler_is_replaced_by_a_new_one() -> None:
    async with stack() as s:

        def take_over(batch) -> None:
            if s.group.num_steps == 4:
                s.group.old_sessions.add(s.group.session)
                s.group.session = 0
                s.group.group.void()
                raise StreamCut("another scheduler opens a session")

        s.group.before_answer = take_over
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == expected(PROMPT)


async def test_a_sequence_that_breaks_the_group_ends_and_takes_no_other_with_it() -> None:
    async with stack() as s:

        def fail_with_poison(batch) -> None:
            known = s.group.group.known
            if any(known[step.sequence_id].seed == 666 for step in batch.sequences):
                raise RuntimeError("this batch breaks the group")

        s.group.before_answer = fail_with_poison
        seeds = {1: 1, 2: 2, 3: 666, 4: 4}
        submits = [make_submit(number, PROMPT, seed=seed) for number, seed in seeds.items()]
        await s.client.call.write(pb.ServeRequest(submits=submits))
        await s.client.read_to_end(*seeds)
        assert s.client.ends[3].code == grpc.StatusCode.INTERNAL.value[0]
        for number in (1, 2, 4):
            assert s.client.tokens[number] == expected(PROMPT, seed=number)
        await s.until_idle()


async def test_a_step_that_fails_by_chance_ends_no_sequence() -> None:
    async with stack() as s:

        def fail_now_and_then(batch) -> None:
            if s.group.num_steps in (3, 4, 12):
                raise RuntimeError("this step fails")

        s.group.before_answer = fail_now_and_then
        for number in range(3):
            await s.client.submit(number, PROMPT, seed=number)
        await s.client.read_to_end(*range(3))
        for number in range(3):
            assert s.client.tokens[number] == expected(PROMPT, seed=number)
        assert len(s.group.old_sessions) > 1
        await s.until_idle()


async def test_health_stays_good_for_a_while_after_the_group_is_lost() -> None:
    async with stack(group_patience_seconds=1.5) as s:
        check = s.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )

        async def is_serving() -> bool:
            response = await check(health_pb2.HealthCheckRequest(service=SERVICE))
            return response.status == health_pb2.HealthCheckResponse.SERVING

        await s.client.read_until(lambda: s.client.opened is not None)
        await s.group_server.stop(None)
        await until(s.scheduler._group.is_lost.is_set)
        assert await is_serving()
        while await is_serving():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_when_the_group_stays_away_running_and_waiting_streams_end_so_that_gateways_move_them() -> None:
    async with stack(group_patience_seconds=0.5, max_num_seqs=1) as s:
        await s.client.submit(1, PROMPT, max_tokens=150)
        await s.client.submit(2, PROMPT)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.may_step.clear()
        await s.group_server.stop(None)
        await s.client.read_to_end(1, 2)
        for end in s.client.ends.values():
            assert end.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert end.message == "there is no group of workers"
        tokens = s.client.tokens[1]
        assert tokens == expected(PROMPT, max_tokens=150)[: len(tokens)]
        s.group.may_step.set()
        add = worker_pb2_grpc.add_WorkerServiceServicer_to_server
        async with serving(lambda server: add(s.group, server), port=s.group_port):
            await until(lambda: s.scheduler.presence.is_serving)
            await s.client.submit(3, PROMPT)
            await s.client.read_to_end(3)
            assert s.client.tokens[3] == expected(PROMPT)
            await s.until_idle()


async def test_draining_ends_what_is_left_with_a_status_to_resume_on() -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT, max_tokens=100)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.may_step.clear()
        await s.scheduler.drain(0)
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == grpc.StatusCode.UNAVAILABLE.value[0]
        tokens = s.client.tokens[1]
        assert tokens == expected(PROMPT, max_tokens=100)[: len(tokens)]
        assert await s.client.call.code() is grpc.StatusCode.UNAVAILABLE


class OracleDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Guesses right, or as badly as it is told to."""

    def __init__(self, spoil: Callable[[drafter_pb2.Draft], None], num_late: int) -> None:
        self.spoil = spoil
        self.num_late = num_late  # tokens by which its drafts are behind
        self.known: dict[int, tuple[list[int], int]] = {}
        self.closed: list[drafter_pb2.DraftSequenceClosed] = []

    async def Propose(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[drafter_pb2.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[drafter_pb2.ProposeResponse]:
        yield drafter_pb2.ProposeResponse(sources=[drafter_pb2.DRAFT_SOURCE_SUFFIX])
        async for request in request_iterator:
            for opened in request.opened:
                self.known[opened.sequence_id] = (list(opened.token_ids), opened.params.seed)
            for committed in request.committed:
                tokens, _ = self.known[committed.sequence_id]
                assert committed.offset == len(tokens)
                tokens.extend(committed.token_ids)
            self.closed.extend(request.closed)
            drafts = [self.draft(wanted) for wanted in request.wanted]
            if drafts:
                yield drafter_pb2.ProposeResponse(drafts=drafts, request_id=request.request_id, complete=True)

    def draft(self, wanted: drafter_pb2.DraftWanted) -> drafter_pb2.Draft:
        tokens, seed = self.known[wanted.sequence_id]
        assert wanted.base_length == len(tokens)
        guess = alone(
            tokens,
            seed,
            num_tokens=len(tokens) + wanted.max_num_tokens,
            stop=frozenset(),
            vocab_size=VOCAB_SIZE,
        )
        base = tokens[: len(tokens) - self.num_late]
        draft = drafter_pb2.Draft(
            sequence_id=wanted.sequence_id,
            base_length=len(base),
            base_hash=token_hash.extend(token_hash.EMPTY, base),
            token_ids=guess[len(base) : len(base) + wanted.max_num_tokens],
            source=drafter_pb2.DRAFT_SOURCE_SUFFIX,
        )
        draft.confidences.extend([0.9] * len(draft.token_ids))
        self.spoil(draft)
        return draft


def spoil_hash(draft: drafter_pb2.Draft) -> None:
    draft.base_hash += 1


def spoil_tokens(draft: drafter_pb2.Draft) -> None:
    draft.token_ids[:] = [VOCAB_SIZE + 5] * len(draft.token_ids)


def spoil_length(draft: drafter_pb2.Draft) -> None:
    draft.token_ids.extend([1] * 1000)
    draft.confidences.extend([0.9] * 1000)


def spoil_guess(draft: drafter_pb2.Draft) -> None:
    draft.token_ids[-1] = (draft.token_ids[-1] + 1) % VOCAB_SIZE


async def run_with_drafter(
    spoil: Callable[[drafter_pb2.Draft], None], *, num_late: int = 0
) -> tuple[Stack, OracleDrafter]:
    oracle = OracleDrafter(spoil, num_late)
    add = lambda server: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(oracle, server)  # noqa: E731
    async with serving(add) as (port, _):
        # A long limit: the machine that runs the tests may be slow, and an answer should be waited for.
        waits = {"max_draft_wait_ms": 5000}
        async with stack(drafter_port=port, **waits) as s:
            await until(lambda: s.scheduler.load().drafter_connected)
            # Time enough that a draft is worth waiting for.
            s.group.step_seconds = 0.02
            for number in range(3):
                await s.client.submit(number, PROMPT, seed=number, max_tokens=60)
            await s.client.read_to_end(*range(3))
            for number in range(3):
                assert s.client.tokens[number] == expected(PROMPT, seed=number, max_tokens=60)
            await s.until_idle()
            await until(lambda: len(oracle.closed) == 3)
            return s, oracle


async def test_right_drafts_save_steps_and_change_no_token() -> None:
    s, oracle = await run_with_drafter(lambda draft: None)
    counters = s.scheduler.counters
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 0
    assert counters.num_steps < 60
    assert all(closed.finished for closed in oracle.closed)


async def test_half_right_drafts_change_no_token() -> None:
    s, _ = await run_with_drafter(spoil_guess)
    assert 0 < s.scheduler.counters.num_accepted_tokens < s.scheduler.counters.num_draft_tokens


async def test_the_rest_of_a_late_draft_is_as_good_as_a_new_one() -> None:
    s, _ = await run_with_drafter(lambda draft: None, num_late=2)
    counters = s.scheduler.counters
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 0


async def test_a_late_draft_whose_beginning_was_wrong_is_never_verified() -> None:
    def spoil_beginning(draft: drafter_pb2.Draft) -> None:
        draft.token_ids[0] = (draft.token_ids[0] + 1) % VOCAB_SIZE

    s, _ = await run_with_drafter(spoil_beginning, num_late=2)
    assert s.scheduler.counters.num_draft_tokens == 0


@pytest.mark.parametrize("spoil", [spoil_hash, spoil_tokens, spoil_length])
async def test_drafts_that_cannot_be_right_are_never_verified(
    spoil: Callable[[drafter_pb2.Draft], None],
) -> None:
    s, _ = await run_with_drafter(spoil)
    assert s.scheduler.counters.num_draft_tokens == 0


async def test_a_drafter_that_does_not_exist_changes_nothing() -> None:
    async with stack(drafter_port=1) as s:
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == expected(PROMPT)


async def test_a_gateway_that_reads_nothing_is_cut_off_and_the_others_go_on() -> None:
    # A small window, and log-probabilities to fill it.
    window = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))
    async with stack(gateway_patience_seconds=0.5) as s:
        s.group.group.num_logprobs = 1000
        async with grpc.aio.insecure_channel(f"127.0.0.1:{s.server.grpc_port}", options=window) as channel:
            deaf = Client(channel)
            await deaf.submit(1, PROMPT, max_tokens=180)
            await s.client.submit(1, PROMPT)
            await s.client.read_to_end(1)
            assert s.client.tokens[1] == expected(PROMPT)
            await until(lambda: len(s.scheduler._gateways) == 1)
            await s.until_idle()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await deaf.read_to_end(1)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_metrics_bear_the_names_that_dashboards_know() -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        registry = CollectorRegistry()
        registry.register(SchedulerCollector(s.scheduler.load, s.scheduler.counters, s.scheduler.figures))
        text = generate_latest(registry).decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f"outrider_{name} 0.0" in text
        assert "outrider_prefix_cache_queries_total 10.0" in text
        assert "outrider_num_output_tokens_total 20.0" in text
        assert "outrider_spec_decode_num_draft_tokens_total 0.0" in text
