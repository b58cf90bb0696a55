"""Two pairs of two ranks each, as a user starts them: alike in what they answer, and neither needed alone."""

import signal
import time
from collections.abc import Iterator

import pytest

from outrider import Client
from outrider.client import Answer
from tests.stack import RunningStack, running_stack, wait_until_gone

NAMES = {
    "gateway", "drafter", "scheduler", "scheduler-2",
    "worker", "worker.0", "worker.1", "worker-2", "worker-2.0", "worker-2.1",
}  # fmt: skip
# Longer under way than a load takes to be reported; the end tokens are ordinary ones, so it is never shorter.
LONG = {"seed": 11, "max_tokens": 240, "ignore_eos": True, "speculation": False, "timeout": 120.0}
QUESTION = "What is 17 + 25?"


@pytest.fixture(scope="module")
def groups() -> Iterator[RunningStack]:
    with running_stack("--ranks", "2", "--pairs", "2") as running:
        yield running
        until_whole(running)
        processes = running.pids()
        running.process.terminate()
        assert running.process.wait(60) == 0
        wait_until_gone(processes)


@pytest.fixture(scope="module")
def client(groups: RunningStack) -> Iterator[Client]:
    with Client(groups.target) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(client: Client) -> Answer:
    return client.chat(QUESTION, **LONG).result()


def until_whole(stack: RunningStack) -> None:
    """Returns when every process is there; the test's own limit ends the wait."""
    while stack.pids().keys() != NAMES:
        time.sleep(0.05)


def until_connected(client: Client) -> None:
    """Returns when both schedulers have their groups; the test's own limit ends the wait."""
    while not all(one.connected and one.load.has_group for one in client.stats()):
        time.sleep(0.05)


def busy_pair(stack: RunningStack, client: Client) -> str:
    """Returns what the names of the pair end with that runs the only answer there is."""
    while True:
        for scheduler in client.stats():
            if scheduler.load.num_requests_running:
                return stack.suffix_of(scheduler.address)


def test_both_pairs_give_the_answer_of_either(groups: RunningStack, client: Client) -> None:
    questions = [f"What is {number} + 25?" for number in range(8)]
    runs = []
    for _ in range(2):
        streams = [client.chat(question, seed=3, max_tokens=40) for question in questions]
        runs.append([stream.result().token_ids for stream in streams])
    assert runs[0] == runs[1]
    first, second = client.stats()
    assert min(first.load.num_steps, second.load.num_steps) > 0
    assert first.numerics_id == second.numerics_id
    assert first.load.num_ranks == second.load.num_ranks == 2


@pytest.mark.parametrize(
    ("number", "victim"),
    [
        (signal.SIGKILL, "worker{}.1"),
        # Torchrun's agent.
        (signal.SIGKILL, "worker{}"),
        (signal.SIGKILL, "scheduler{}"),
        (signal.SIGKILL, "gateway"),
        (signal.SIGSTOP, "worker{}.0"),
        (signal.SIGSTOP, "scheduler{}"),
        (signal.SIGSTOP, "gateway"),
    ],
)
def test_an_answer_goes_on_alike_when_any_process_is_killed_or_stopped(
    groups: RunningStack, client: Client, undisturbed: Answer, number: signal.Signals, victim: str
) -> None:
    until_whole(groups)
    until_connected(client)
    stream = client.chat(QUESTION, **LONG)
    next(stream)
    name = victim.format(busy_pair(groups, client))
    struck = groups.send(number, name)
    assert stream.result().token_ids == undisturbed.token_ids
    wait_until_gone({name: struck})


def test_a_stopped_agent_is_in_nobodys_way_until_a_rank_is_to_be_started(
    groups: RunningStack, client: Client, undisturbed: Answer
) -> None:
    until_whole(groups)
    until_connected(client)
    agent = groups.send(signal.SIGSTOP, "worker")
    assert client.chat(QUESTION, **LONG).result().token_ids == undisturbed.token_ids
    assert groups.pid("worker") == agent
    rank = groups.send(signal.SIGKILL, "worker.1")
    wait_until_gone({"worker": agent})
    until_whole(groups)
    until_connected(client)
    assert groups.pid("worker.1") != rank
    assert client.chat(QUESTION, **LONG).result().token_ids == undisturbed.token_ids
