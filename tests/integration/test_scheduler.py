"""A real scheduler between a gateway's stream and a group server whose tokens are a pure function."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry, generate_latest

from outrider.v1 import scheduler_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.scheduler.metrics import SchedulerCollector
from services.scheduler.service import SERVICE
from tests.integration.scheduler_stack import (
    PROMPT,
    VOCAB_SIZE,
    Client,
    expected,
    make_submit,
    serving,
    stack,
    until,
)
from tests.unit.scheduler.group_server import StreamCut


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
