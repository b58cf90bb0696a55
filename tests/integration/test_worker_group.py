"""A group of two ranks as real processes: what it computes, and how it ends and comes back."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.processes import all_processes
from outrider.rpc.channel import connect
from services.local.ports import free_ports
from services.worker.service import SERVICE
from tests.groups import BLOCK_SIZE, NUM_BLOCKS, Stream, prompt_of, scheduled, write_model

PATIENCE_SECONDS = 60


class Group:
    """The agent's process, its ranks, and where rank 0 answers."""

    def __init__(self, process, log, grpc_port, http_port):
        self.process = process
        self.log = log
        self.address = f"127.0.0.1:{grpc_port}"
        self.grpc_port = grpc_port
        self.http_port = http_port

    def ranks(self):
        """The process ids of the ranks that run, by rank."""
        children = [process for process in all_processes() if process.parent == self.process.pid]
        return {process.name: process.pid for process in children if process.name.startswith("rank ")}

    def send(self, number, rank):
        os.kill(self.ranks()[f"rank {rank}"], number)


@contextmanager
def running_group(directory, model_dir, **variables):
    grpc_port, http_port = free_ports(2, num_ranks=2)
    settings = {
        "MODEL_DIR": model_dir, "NUM_RANKS": 2, "GRPC_PORT": grpc_port, "HTTP_PORT": http_port,
        "BLOCK_SIZE": BLOCK_SIZE, "NUM_BLOCKS": NUM_BLOCKS, "MAX_NUM_BATCHED_TOKENS": 128,
    } | variables  # fmt: skip
    own = {f"OUTRIDER_WORKER_{name}": str(value) for name, value in settings.items()}
    log = Path(directory) / "worker.log"
    with (
        log.open("w") as opened,
        subprocess.Popen(
            [sys.executable, "-m", "services.worker"],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | own,
            stderr=opened,
        ) as process,
    ):
        try:
            yield Group(process, log, grpc_port, http_port)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def group(tmp_path_factory, model_dir):
    with running_group(tmp_path_factory.mktemp("group"), model_dir) as running:
        yield running


async def until_serving(channel):
    health: Any = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                found = await health.Check(request)
                if found.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.05)


async def opened(channel, session):
    stream = Stream(channel, session)
    return stream, await stream.open()


async def tokens_and_logprobs(stream, sequences, num_steps, *, first_step=1):
    """Steps all sequences together, a few rows of each at a time."""
    for step_id in range(first_step, first_step + num_steps):
        steps = [sequence.step(max_rows=3 + sequence.id) for sequence in sequences]
        output = await stream.step(step_id, steps)
        found = {item.sequence_id: item.tokens for item in output.outputs}
        for sequence, step in zip(sequences, steps, strict=True):
            sequence.commit(step, found.get(sequence.id))
    return [
        (sequence.output[:4], [entry.logprob for entry in sequence.logprobs[:4]]) for sequence in sequences
    ]


def new_sequence(index):
    return scheduled(index, prompt_of(index, 5 + 2 * index), temperature=0.8, seed=index, num_logprobs=0)


def wait_until_ended(pids):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while {process.pid for process in all_processes()} & set(pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def page(port, path):
    """Returns what a rank's HTTP side says; raises HTTPError if it is not well."""
    with urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
        return answer.read().decode()


async def step_until_lost(stream, step_id):
    """Runs one step after the other, each of a sequence from its start on."""
    while True:
        await stream.step(step_id, [new_sequence(1).step()], released=[1])
        step_id += 1


async def test_bits_are_the_same_alone_and_in_a_mixed_batch(group):
    async with connect(group.address) as channel:
        await until_serving(channel)
        stream, facts = await opened(channel, 1)
        assert facts.num_ranks == 2
        assert facts.device.endswith(", 2 ranks")
        together = await tokens_and_logprobs(stream, [new_sequence(index) for index in range(4)], 9)
        for index in range(4):
            stream, _ = await opened(channel, 10 + index)
            assert await tokens_and_logprobs(stream, [new_sequence(index)], 9) == [together[index]]


async def test_a_step_tells_how_long_ranks_exchanged_parts(group):
    async with connect(group.address) as channel:
        await until_serving(channel)
        stream, _ = await opened(channel, 21)
        output = await stream.step(1, [new_sequence(0).step()])
        assert 0 < output.exchange_us <= output.forward_us + output.sample_us
    metrics = await asyncio.to_thread(page, group.http_port, "metrics")
    assert "outrider_worker_exchanged_bytes_total" in metrics
    assert "outrider_worker_exchanged_bytes_total 0.0" not in metrics


async def test_a_rank_that_follows_serves_health_and_metrics_ten_ports_on(group):
    async with connect(f"127.0.0.1:{group.grpc_port + 10}") as channel:
        await until_serving(channel)
    for path in ("healthz", "livez", "metrics"):
        assert await asyncio.to_thread(page, group.http_port + 10, path)


@pytest.mark.parametrize(
    ("number", "rank"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1), (signal.SIGSTOP, 0)],
)
async def test_a_rank_lost_in_a_step_is_unavailable_and_a_new_group_gives_the_same(group, number, rank):
    async with connect(group.address) as channel:
        await until_serving(channel)
        session = 100 + 2 * number + rank
        stream, _ = await opened(channel, session)
        before = await tokens_and_logprobs(stream, [new_sequence(2)], 9)
        killed, ranks = stream.epoch, group.ranks()
        group.send(number, rank)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await step_until_lost(stream, 10)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await asyncio.to_thread(wait_until_ended, ranks.values())
        await until_serving(channel)
        stream, _ = await opened(channel, session)
        assert stream.epoch != killed
        assert await tokens_and_logprobs(stream, [new_sequence(2)], 9) == before


async def test_a_rank_that_is_told_to_stop_alone_ends_and_a_new_group_serves(group):
    async with connect(group.address) as channel:
        await until_serving(channel)
        ranks = group.ranks()
        group.send(signal.SIGTERM, 1)
        await asyncio.to_thread(wait_until_ended, ranks.values())
        await until_serving(channel)


async def test_a_repeated_step_gets_the_stored_answer(group):
    async with connect(group.address) as channel:
        await until_serving(channel)
        stream, _ = await opened(channel, 31)
        step = new_sequence(1).step()
        first = await stream.step(1, [step])
        again, _ = await opened(channel, 31)
        assert await again.step(1, [step]) == first


async def test_sigterm_lets_the_step_in_flight_end_and_every_process_ends(group):
    async with connect(group.address) as channel:
        await until_serving(channel)
        stream, _ = await opened(channel, 41)
        step = asyncio.ensure_future(stream.step(1, [new_sequence(index).step() for index in range(8)]))
        await asyncio.sleep(0)
        ranks = group.ranks()
        group.process.send_signal(signal.SIGTERM)
        assert len((await step).outputs) == 8
    assert await asyncio.to_thread(group.process.wait, PATIENCE_SECONDS) == 0
    await asyncio.to_thread(wait_until_ended, ranks.values())
    assert "service_failed" not in group.log.read_text()


async def test_a_killed_agent_leaves_no_rank_behind(tmp_path, model_dir):
    with running_group(tmp_path, model_dir) as group:
        async with connect(group.address) as channel:
            await until_serving(channel)
        ranks = group.ranks()
        assert len(ranks) == 2
        # Even a rank that is stopped ends.
        group.send(signal.SIGSTOP, 1)
        group.process.kill()
        await asyncio.to_thread(wait_until_ended, ranks.values())


def test_a_wrong_setting_is_one_line_and_status_two_and_starts_nothing_again(tmp_path, model_dir):
    with running_group(tmp_path, model_dir, NUM_RANKS=3, NUM_REDUNDANT_EXPERTS=1) as group:
        assert group.process.wait(PATIENCE_SECONDS) == 2
        written = group.log.read_text().splitlines()
    lines = [line for line in written if not line.startswith("{")]
    assert lines == [
        "outrider worker: OUTRIDER_WORKER_MODEL_DIR: 4 attention heads cannot be split over 3 ranks"
    ]
    # A supervisor shows the last line.
    assert written[-1] == lines[-1]
