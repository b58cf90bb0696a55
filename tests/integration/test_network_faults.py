"""Faults of the network between the four services, each a process of its own: no token is lost or changed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from outrider import AsyncClient
from outrider.client import Answer, AsyncStream
from tests.faults import Proxy
from tests.questions import essence
from tests.service_process import MODEL_DIR, ServiceProcess

# Long enough to be under way when something happens; those drawn at random and those that drafts fit.
QUESTIONS = [
    {"message": f"What is {17 * index} + 25?", "seed": index, "temperature": temperature, "max_tokens": 160}
    | {"ignore_eos": True, "timeout": 100.0}
    for index, temperature in enumerate((0.0, 0.0, 1.0, 1.0))
]
LINKS: tuple[str, ...] = ("client-gateway", "gateway-scheduler", "scheduler-worker", "scheduler-drafter")


@dataclass
class Wired:
    """The four services, with a proxy on each way between two of them."""

    worker: ServiceProcess
    scheduler: ServiceProcess
    gateway: ServiceProcess
    proxies: dict[str, Proxy]

    def wait_until_nothing_is_held(self) -> None:
        """Returns when no sequence runs or waits and no block is held; the test's own limit ends the wait."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        while any(self.scheduler.metric(f"outrider_{name}") for name in names):
            time.sleep(0.1)


@pytest.fixture(scope="module")
def wired() -> Iterator[Wired]:
    with ExitStack() as stack:
        enter = stack.enter_context
        worker = enter(ServiceProcess("worker", model_dir=MODEL_DIR, num_threads=1, num_blocks=256))
        drafter = enter(ServiceProcess("drafter"))
        to_worker, to_drafter = enter(Proxy(worker.address)), enter(Proxy(drafter.address))
        scheduler = enter(ServiceProcess("scheduler", worker=to_worker.address, drafter=to_drafter.address))
        to_scheduler = enter(Proxy(scheduler.address))
        gateway = enter(ServiceProcess("gateway", schedulers=to_scheduler.address, model_dir=MODEL_DIR))
        to_gateway = enter(Proxy(gateway.address))
        for service in (worker, drafter, scheduler, gateway):
            service.wait_until_serving()
        proxies = (to_gateway, to_scheduler, to_worker, to_drafter)
        yield Wired(worker, scheduler, gateway, dict(zip(LINKS, proxies, strict=True)))


@pytest.fixture(scope="module")
def undisturbed(wired: Wired) -> list[tuple]:
    async def ask_each_alone() -> list[tuple]:
        async with AsyncClient(wired.gateway.address) as client:
            return [essence(await ask(client, question).result()) for question in QUESTIONS]

    return asyncio.run(ask_each_alone())


def ask(client: AsyncClient, question: dict) -> AsyncStream:
    options = {name: value for name, value in question.items() if name != "message"}
    return client.chat(question["message"], **options)


@dataclass
class Progress:
    """How many tokens all streams together have received."""

    num_tokens: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.changed.set()

    async def further(self, num_tokens: int) -> None:
        """Returns when so many more have come."""
        goal = self.num_tokens + num_tokens
        while self.num_tokens < goal:
            self.changed.clear()
            await self.changed.wait()


Fault = Callable[[Proxy, Progress], Awaitable[None]]


async def resets(proxy: Proxy, progress: Progress) -> None:
    for _ in range(3):
        await progress.further(40)
        proxy.reset()


async def half_open(proxy: Proxy, progress: Progress) -> None:
    await progress.further(40)
    proxy.swallow()


async def cut_and_healed(proxy: Proxy, progress: Progress) -> None:
    await progress.further(40)
    proxy.cut()
    await asyncio.sleep(1.0)
    proxy.heal()


async def slow(proxy: Proxy, progress: Progress) -> None:
    proxy.slow(most_delay_seconds=0.05, bytes_per_second=100_000)
    await progress.further(100)
    proxy.heal()


async def follow(stream: AsyncStream, progress: Progress) -> Answer:
    async for delta in stream:
        progress.add(len(delta.token_ids))
    return await stream.result()


async def answers_under(fault: Fault, proxy: Proxy, target: str) -> list[tuple]:
    """Asks all questions at once while the fault happens."""
    progress = Progress()
    async with AsyncClient(target) as client, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(follow(ask(client, question), progress)) for question in QUESTIONS]
        tasks.create_task(_do(fault, proxy, progress))
    return [essence(task.result()) for task in asked]


async def _do(fault: Fault, proxy: Proxy, progress: Progress) -> None:
    # What the fault before has cut may take a second to be there again.
    while not proxy.carries:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await fault(proxy, progress)


@pytest.mark.parametrize("fault", [resets, half_open, cut_and_healed, slow])
@pytest.mark.parametrize("link", LINKS)
async def test_every_stream_ends_as_if_nothing_had_happened(
    wired: Wired, undisturbed: list[tuple], link: str, fault: Fault
) -> None:
    proxy, target = wired.proxies[link], wired.proxies["client-gateway"].address
    num_lost_before = proxy.num_lost
    assert await answers_under(fault, proxy, target) == undisturbed
    assert (proxy.num_lost > num_lost_before) == (fault is not slow)
    await asyncio.to_thread(wired.wait_until_nothing_is_held)


async def test_a_step_asked_for_again_is_answered_and_not_run_twice(
    wired: Wired, undisturbed: list[tuple]
) -> None:
    async def counts() -> tuple[float, float]:
        worker = await asyncio.to_thread(wired.worker.metric, "outrider_worker_output_tokens_total")
        return worker, await asyncio.to_thread(wired.scheduler.metric, "outrider_num_output_tokens_total")

    async def resets_again_and_again(proxy: Proxy, progress: Progress) -> None:
        for _ in range(12):
            await progress.further(20)
            proxy.reset()

    before = await counts()
    proxy = wired.proxies["scheduler-worker"]
    assert await answers_under(resets_again_and_again, proxy, wired.gateway.address) == undisturbed
    computed, committed = (after - earlier for after, earlier in zip(await counts(), before, strict=True))
    assert computed == committed == sum(question["max_tokens"] for question in QUESTIONS)
