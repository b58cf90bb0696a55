"""Schedulers told to stop, as processes behind one gateway: work is finished where it runs, or moves on."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from outrider import AsyncClient
from outrider.client import Answer
from tests.questions import essence
from tests.service_process import MODEL_DIR, ServiceProcess

NUM_STREAMS = 4
MAX_TOKENS = 200
# More than the streams take, and far less.
PATIENT_SECONDS, HASTY_SECONDS = 60.0, 0.1


@dataclass
class Pairs:
    """Two schedulers, each with a worker of its own, behind one gateway."""

    patient: ServiceProcess
    hasty: ServiceProcess
    target: str


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with ExitStack() as stack:
        enter = stack.enter_context
        workers = [enter(ServiceProcess("worker", model_dir=MODEL_DIR, num_threads=1)) for _ in range(2)]
        patient, hasty = (
            enter(ServiceProcess("scheduler", worker=worker.address, drain_seconds=seconds))
            for worker, seconds in zip(workers, (PATIENT_SECONDS, HASTY_SECONDS), strict=True)
        )
        addresses = f"{patient.address},{hasty.address}"
        gateway = enter(ServiceProcess("gateway", schedulers=addresses, model_dir=MODEL_DIR))
        for service in (*workers, patient, hasty, gateway):
            service.wait_until_serving()
        yield Pairs(patient, hasty, gateway.address)


async def until_connected(client: AsyncClient, num_schedulers: int) -> None:
    while sum(scheduler.connected for scheduler in await client.stats()) < num_schedulers:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def ask(client: AsyncClient, index: int, has_begun: asyncio.Event | None = None) -> tuple:
    """Asks for an answer that no draft shortens; says when its first token has come."""
    stream = client.generate(
        [7 * index + 3, 5, 11], seed=index, temperature=1.0, max_tokens=MAX_TOKENS, ignore_eos=True,
        speculation=False, timeout=100.0,
    )  # fmt: skip
    async for _ in stream:
        if has_begun is not None:
            has_begun.set()
    answer: Answer = await stream.result()
    return essence(answer)


async def ask_and_stop(client: AsyncClient, service: ServiceProcess) -> tuple[list[tuple], int]:
    """Stops a scheduler when all answers have begun; returns them, and how many it was running."""
    begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(client, index, event)) for index, event in enumerate(begun)]
        for event in begun:
            await event.wait()
        num_running = int(await asyncio.to_thread(service.metric, "outrider_num_requests_running"))
        service.terminate()
    return [task.result() for task in asked], num_running


async def num_put_out(service: ServiceProcess) -> float:
    return await asyncio.to_thread(service.metric, "outrider_num_output_tokens_total")


async def test_a_drained_scheduler_finishes_its_work_and_takes_no_more_or_hands_it_over_in_time(
    pairs: Pairs,
) -> None:
    async with AsyncClient(pairs.target) as client:
        await until_connected(client, 2)
        undisturbed = await asyncio.gather(*(ask(client, index) for index in range(NUM_STREAMS)))

        before = await num_put_out(pairs.hasty)
        answers, num_running = await ask_and_stop(client, pairs.patient)
        assert answers == undisturbed
        assert 0 < num_running < NUM_STREAMS
        assert await ask(client, 0) == undisturbed[0]
        num_elsewhere = NUM_STREAMS - num_running + 1
        assert await num_put_out(pairs.hasty) - before == MAX_TOKENS * num_elsewhere
        assert await asyncio.to_thread(pairs.patient.process.wait) == 0

        pairs.patient.start()
        await asyncio.to_thread(pairs.patient.wait_until_serving)
        await until_connected(client, 2)
        answers, num_running = await ask_and_stop(client, pairs.hasty)
        assert answers == undisturbed
        assert 0 < num_running < NUM_STREAMS
        # It has computed its own, and the ends of those that were handed over.
        own = MAX_TOKENS * (NUM_STREAMS - num_running)
        assert own < await num_put_out(pairs.patient) < MAX_TOKENS * NUM_STREAMS
        assert await asyncio.to_thread(pairs.hasty.process.wait) == 0
