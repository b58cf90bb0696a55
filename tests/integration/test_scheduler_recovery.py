"""What a scheduler makes of a group that is lost, silent, or another when it comes back."""

import asyncio

import grpc
import pytest

from outrider.v1 import scheduler_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.scheduler.config import Config
from tests.integration.scheduler_stack import PROMPT, Client, Stack, expected, serving, stack, until
from tests.unit.scheduler.group_server import StreamCut

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


def lose_group_at(s: Stack, *steps: int) -> None:
    """Lets the group die, and begin anew, with the answers to these of its steps."""

    def die(batch) -> None:
        if s.group.num_steps in steps:
            s.group.lose_everything()
            raise StreamCut("the group restarts")

    s.group.before_answer = die


async def test_a_group_that_dies_with_every_step_for_a_while_is_no_sequence_s_fault() -> None:
    async with stack() as s:
        lose_group_at(s, *range(1, 7))
        for number in range(3):
            await s.client.submit(number, PROMPT, seed=number)
        await s.client.read_to_end(*range(3))
        for number in range(3):
            assert s.client.tokens[number] == expected(PROMPT, seed=number)
        await s.until_idle()


async def test_steps_are_counted_when_they_are_done_and_once() -> None:
    async with stack() as s:

        def die_then_cut(batch) -> None:
            if s.group.num_steps == 5:
                s.group.lose_everything()
                raise StreamCut("the group restarts")
            if s.group.num_steps == 12 and not s.group.num_repeats:
                raise StreamCut("the stream breaks after the step has run")

        s.group.before_answer = die_then_cut
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.group.num_repeats == 1
        assert s.client.ends[1].num_steps == len(expected(PROMPT)) == 20
        assert s.client.ends[1].num_preemptions == 1
        assert s.scheduler.counters.num_steps == 20
        assert s.scheduler.counters.num_output_tokens == 20


async def test_nothing_is_learnt_from_a_step_that_the_way_to_the_group_held_up() -> None:
    async with stack() as s:

        def cut_once(batch) -> None:
            if s.group.num_steps == 5 and not s.group.num_repeats:
                raise StreamCut("the stream breaks after the step has run")

        s.group.before_answer = cut_once
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.group.num_repeats == 1
        assert s.scheduler.schedule.controller.num_steps == 19


async def test_what_a_lost_group_had_cached_is_not_reported_as_cached() -> None:
    async with stack() as s:
        for number in range(2):
            await s.client.submit(number, PROMPT)
            await s.client.read_to_end(number)
        assert s.client.started == {0: 0, 1: 8}
        groups = s.scheduler.load().num_groups
        lose_group_at(s, s.group.num_steps + 1)
        await s.client.submit(2, PROMPT)
        await s.client.read_to_end(2)
        assert s.client.tokens[2] == expected(PROMPT)
        assert s.client.started[2] == 0
        assert s.scheduler.load().num_groups == groups + 1


async def test_a_step_that_stays_unanswered_is_asked_for_again_and_run_once() -> None:
    async with stack(step_patience_seconds=0.2) as s:
        await s.client.submit(1, PROMPT, max_tokens=40)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        assert s.scheduler.load().has_group
        s.group.may_step.clear()
        await until(lambda: not s.scheduler.load().has_group)
        # Once more it opens and asks, and still there is no group.
        s.group.has_been_asked.clear()
        await s.group.has_been_asked.wait()
        assert not s.scheduler.load().has_group
        s.group.may_step.set()
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == expected(PROMPT, max_tokens=40)
        assert s.scheduler.load().has_group
        assert s.client.ends[1].num_steps == 40
        await s.until_idle()


async def test_streams_of_a_group_that_opens_and_never_answers_end_so_that_gateways_move_them() -> None:
    async with stack(step_patience_seconds=0.1, group_patience_seconds=0.6) as s:
        await s.client.submit(1, PROMPT)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.may_step.clear()
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == UNAVAILABLE
        s.group.may_step.set()
        await until(lambda: s.scheduler.presence.is_serving)
        await s.client.submit(2, PROMPT)
        await s.client.read_to_end(2)
        assert s.client.tokens[2] == expected(PROMPT)
        await s.until_idle()


async def test_a_group_that_comes_back_with_other_arithmetic_ends_every_stream_and_is_named_to_new_ones() -> (
    None
):
    async with stack() as s:

        def become_another(batch) -> None:
            if s.group.num_steps == 4:
                s.group.group.opened.numerics_id = "reference-2"
                s.group.lose_everything()
                raise StreamCut("the group restarts")

        s.group.before_answer = become_another
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.client.ends[1].code == UNAVAILABLE
        assert s.client.tokens[1] == expected(PROMPT)[: len(s.client.tokens[1])]
        assert await s.client.call.code() is grpc.StatusCode.UNAVAILABLE
        again = Client(s.channel)
        await again.submit(1, PROMPT)
        await again.read_to_end(1)
        assert again.opened is not None
        assert again.opened.numerics_id == "reference-2"
        await s.until_idle()


async def test_a_gateway_comes_in_while_a_group_that_was_there_is_away() -> None:
    async with stack() as s:
        await s.client.read_until(lambda: s.client.opened is not None)
        s.group.may_step.clear()
        await s.group_server.stop(None)
        await until(lambda: not s.scheduler.load().has_group)
        other = Client(s.channel)
        await other.read_until(lambda: other.opened is not None)


async def end(client: Client, how: str) -> None:
    """Ends the client's only sequence; its deadline comes by itself."""
    if how == "abort":
        await client.call.write(pb.ServeRequest(aborts=[pb.Abort(sequence_id=1)]))
    elif how == "broken stream":
        client.call.cancel()


@pytest.mark.parametrize("how", ["abort", "deadline", "broken stream"])
async def test_what_ends_while_the_group_is_away_is_not_computed_when_it_is_back(how: str) -> None:
    async with stack() as s:
        timeout = 1.0 if how == "deadline" else None
        await s.client.submit(1, PROMPT, max_tokens=150, timeout=timeout)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.may_step.clear()
        await s.group_server.stop(None)
        await until(lambda: not s.scheduler.load().has_group)
        await end(s.client, how)
        await until(lambda: not s.scheduler.schedule.has_work)
        s.group.lose_everything()
        num_steps = s.group.num_steps
        s.group.may_step.set()
        add = worker_pb2_grpc.add_WorkerServiceServicer_to_server
        async with serving(lambda server: add(s.group, server), port=s.group_port):
            await until(lambda: s.scheduler.load().has_group)
            await s.until_idle()
            assert s.group.num_steps == num_steps


@pytest.mark.parametrize("how", ["abort", "deadline", "broken stream"])
async def test_a_drain_waits_for_nothing_that_has_ended(how: str) -> None:
    async with stack() as s:
        timeout = 1.0 if how == "deadline" else None
        await s.client.submit(1, PROMPT, max_tokens=150, timeout=timeout)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.step_seconds = 0.05
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(s.scheduler.drain(1000))
            await asyncio.sleep(0.1)
            await end(s.client, how)
        await s.until_idle()


async def test_a_drain_waits_for_nothing_that_has_ended_while_the_group_is_away() -> None:
    async with stack() as s:
        await s.client.submit(1, PROMPT, max_tokens=150)
        await s.client.read_until(lambda: bool(s.client.tokens.get(1)))
        s.group.may_step.clear()
        await s.group_server.stop(None)
        await until(lambda: not s.scheduler.load().has_group)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(s.scheduler.drain(1000))
            await asyncio.sleep(0.1)
            await end(s.client, "abort")


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_step_must_be_given_some_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="step_patience_seconds"):
        Config(worker="127.0.0.1:1", step_patience_seconds=seconds)
