"""Promise 2 as a whole: whatever processes are killed, stopped and restarted, no stream is lost or changed.

OUTRIDER_CHAOS_SEED draws other faults and questions, OUTRIDER_CHAOS_SECONDS lets it go on for longer,
OUTRIDER_CHAOS_PAIRS and _RANKS size the stack. The seed and what has happened are printed when it fails.
"""

import asyncio
import itertools
import os
import random
import shutil
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.processes import Process, all_processes, logs_of, services_of
from outrider import AsyncClient
from outrider.client import Answer
from tests.chaos.faults import Fault, schedule, targets
from tests.chaos.memory import Peaks
from tests.chaos.streams import Question, ask, check, questions
from tests.stack import RunningStack, running_stack

SEED = int(os.environ.get("OUTRIDER_CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("OUTRIDER_CHAOS_SECONDS", "45"))
NUM_PAIRS = int(os.environ.get("OUTRIDER_CHAOS_PAIRS", "2"))
NUM_RANKS = int(os.environ.get("OUTRIDER_CHAOS_RANKS", "2"))
# Experts move between the ranks all the time.
OFTEN = {"OUTRIDER_WORKER_REBALANCE_SECONDS": "2", "OUTRIDER_WORKER_NUM_REDUNDANT_EXPERTS": "4"}
NUM_STREAMS = 200
NUM_AT_ONCE = 16
# All of a stack's processes have it in their environment, whoever their parent is by now.
MARK = "OUTRIDER_CHAOS_MARK"
# A stack that was hit for the last time is whole again, and a stopped one gone, within this.
SETTLE_SECONDS = 60.0


class Chaos:
    """One run: what was asked, what was done to the stack, and what came of it."""

    def __init__(self, stack: RunningStack, client: AsyncClient) -> None:
        self.questions = questions(SEED, NUM_STREAMS)
        self.faults = schedule(SEED, seconds=SECONDS, num_pairs=NUM_PAIRS, num_ranks=NUM_RANKS)
        self.expected: list[Answer] = []
        self.peaks, self.later_peaks = Peaks(), Peaks()
        self.failures: list[str] = []
        self.num_done = 0
        self.num_struck = 0
        self._num_begun = 0
        self._stack_pid = stack.process.pid
        self._client = client
        self._all_struck = asyncio.Event()
        self._half_struck = asyncio.Event()

    async def run(self) -> None:
        """Asks all questions undisturbed, and again while faults strike, until both are through."""
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self.peaks.watch(self._stack_pid))
            self.expected = await self._undisturbed()
            tasks.create_task(self._strike())
            streams = tasks.create_task(self._ask_all())
            await self._half_struck.wait()
            watch.cancel()
            watch = tasks.create_task(self.later_peaks.watch(self._stack_pid))
            await streams
            watch.cancel()

    async def _undisturbed(self) -> list[Answer]:
        slots = asyncio.Semaphore(NUM_AT_ONCE)

        async def answer(question: Question) -> Answer:
            async with slots:
                return await ask(self._client, question, speculation=False).result()

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(answer(question)) for question in self.questions]
        return [task.result() for task in asked]

    async def _ask_all(self) -> None:
        """Keeps some streams running: each question once at least, and on while there are faults to come."""
        order = random.Random(SEED).sample(range(NUM_STREAMS), NUM_STREAMS)
        places = itertools.cycle(order)

        async def keep_asking() -> None:
            while self._num_begun < NUM_STREAMS or not self._all_struck.is_set():
                self._num_begun += 1
                await self.check_one(next(places))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_AT_ONCE):
                tasks.create_task(keep_asking())

    async def check_one(self, place: int) -> None:
        """Asks one question and notes what is wrong with the answer."""
        try:
            await check(self._client, self.questions[place], self.expected[place])
        except Exception as error:
            self.failures.append(f"{self.questions[place]}: {error!r}")
        self.num_done += 1

    async def _strike(self) -> None:
        """Does what the schedule says, at its time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(self.faults):
                await asyncio.sleep(began + fault.at - loop.time())
                if 2 * number >= len(self.faults):
                    self._half_struck.set()
                tasks.create_task(self._strike_one(fault))
        self._half_struck.set()
        self._all_struck.set()

    async def _strike_one(self, fault: Fault) -> None:
        was_there = await fault.strike(self._stack_pid)
        self.num_struck += was_there
        say(f"{fault}{'' if was_there else ': not there'}; {self.num_done} streams done")


def say(line: str) -> None:
    """Tells how it goes; shown when it fails."""
    sys.stderr.write(f"{line}\n")


def marked(mark: str) -> dict[int, Process]:
    """Returns the processes of a stack by their ids, those too that have lost their parent."""
    return {process.pid: process for process in all_processes() if process.variables().get(MARK) == mark}


async def until_whole(client: AsyncClient, stack: RunningStack, mark: str) -> None:
    """Returns when all processes are there, none is stopped or an orphan, and no scheduler has work."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while not (is_whole(stack.process.pid, marked(mark)) and await is_idle(client)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def is_whole(stack_pid: int, found: Mapping[int, Process]) -> bool:
    """Whether just the processes run that a stack has, and what they have started."""
    services = services_of(stack_pid)
    # An agent that was stopped harms nobody while its ranks serve.
    agents = {services[name.partition(".")[0]].pid for name in services if "." in name}
    return (
        services.keys() == set(targets(NUM_PAIRS, NUM_RANKS))
        and not any(process.is_stopped and process.pid not in agents for process in found.values())
        and all(process.parent in found for process in found.values() if process.pid != stack_pid)
    )


async def is_idle(client: AsyncClient) -> bool:
    """Whether all schedulers are there with a group and a drafter, and hold no block and no sequence."""
    schedulers = await client.stats()
    loads = [scheduler.load for scheduler in schedulers]
    return (
        len(schedulers) == NUM_PAIRS
        and all(scheduler.connected for scheduler in schedulers)
        and all(
            load.has_group and load.drafter_connected and load.num_blocks == load.num_free_blocks > 0
            for load in loads
        )
        and not any(load.num_requests_running + load.num_requests_waiting for load in loads)
    )


def keep_logs(stack: RunningStack, directory: Path) -> None:
    """Copies the logs to where they outlive the stack."""
    for name, path in logs_of(stack.process.pid).items():
        shutil.copy(path, directory / f"{name}.log")


@pytest.mark.timeout(SECONDS + 400)
async def test_no_stream_is_lost_or_changed_while_processes_are_killed_stopped_and_restarted(
    tmp_path: Path,
) -> None:
    mark = uuid.uuid4().hex
    size = ["--pairs", str(NUM_PAIRS)] * (NUM_PAIRS > 1) + ["--ranks", str(NUM_RANKS)] * (NUM_RANKS > 1)
    say(f"OUTRIDER_CHAOS_SEED={SEED} OUTRIDER_CHAOS_SECONDS={SECONDS:g}; logs in {tmp_path}")
    with running_stack(*size, environment={MARK: mark, **OFTEN}) as stack:
        try:
            async with AsyncClient(stack.target) as client:
                chaos = Chaos(stack, client)
                await chaos.run()
                assert chaos.failures == []
                # What is down for long cannot be hit.
                assert chaos.num_struck > len(chaos.faults) / 2
                await until_whole(client, stack, mark)
                await asyncio.gather(*map(chaos.check_one, range(NUM_AT_ONCE)))
                assert chaos.failures == []
                await until_whole(client, stack, mark)
                assert chaos.later_peaks.grown_since(chaos.peaks) == {}
        finally:
            keep_logs(stack, tmp_path)
    async with asyncio.timeout(SETTLE_SECONDS):
        while marked(mark):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
