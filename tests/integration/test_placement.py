"""Experts that move between the ranks of a group that serves change no token."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outrider.rpc.channel import connect
from outrider.v1 import worker_pb2 as pb
from tests.groups import BLOCK_SIZE, NUM_BLOCKS, Scheduled, Stream, prompt_of, scheduled, write_model
from tests.service_process import ServiceProcess

NUM_PASSES = 25
NUM_SEQUENCES = 4
NUM_OUTPUT_TOKENS = 12

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "worker"


@pytest.fixture(scope="module")
def groups(model_dir: Path, state_dir: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """One that never moves experts, and one that does as soon as there is anything to gain."""
    settings = {
        "model_dir": model_dir, "num_ranks": 2, "num_threads": 1, "block_size": BLOCK_SIZE,
        "num_blocks": NUM_BLOCKS, "num_redundant_experts": 2, "drain_seconds": 0,
    }  # fmt: skip
    with ExitStack() as stack:
        still = ServiceProcess("worker", rebalance_seconds=0, **settings)
        moving = ServiceProcess("worker", rebalance_seconds=0.05, state_dir=state_dir, **settings)
        for group in (still, moving):
            stack.enter_context(group)
        for group in (still, moving):
            group.wait_until_serving()
        yield still, moving


def drawn(number: int) -> list[Scheduled]:
    """Sequences of all kinds, the same ones in every pass, under ids of their own."""
    kinds = [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 1.2, "top_p": 0.9, "seed": 4},
    ]
    found = [
        scheduled(index, prompt_of(index, 40 + 9 * index), num_logprobs=2, **kinds[index % len(kinds)])
        for index in range(NUM_SEQUENCES)
    ]
    for sequence in found:
        sequence.id += NUM_SEQUENCES * number
    return found


async def passes(address: str, num_passes: int) -> AsyncIterator[tuple[int, list[pb.OutputTokens]]]:
    """Plays the sequences again and again, with drafts that are wrong; yields version and answers."""
    async with connect(address) as channel:
        stream = Stream(channel, session=1)
        await stream.open()
        step_id = 0
        released: list[int] = []
        for number in range(num_passes):
            sequences, found, version = drawn(number), [], 0
            while len(sequences[-1].output) < NUM_OUTPUT_TOKENS:
                step_id += 1
                steps = [sequence.step(draft=[5, 6, 7]) for sequence in sequences]
                answer = await stream.step(step_id, steps, released)
                released, version = [], answer.placement_version
                outputs = [item.tokens for item in answer.outputs]
                found += outputs
                for sequence, step, output in zip(sequences, steps, outputs, strict=True):
                    sequence.num_computed += step.num_new_tokens + output.num_accepted_tokens
                    sequence.tokens += output.token_ids
            released = [sequence.id for sequence in sequences]
            yield version, found


async def played(group: ServiceProcess, num_passes: int) -> list[tuple[int, list[pb.OutputTokens]]]:
    return [one async for one in passes(group.address, num_passes)]


def num_kept_tokens(state_dir: Path) -> float:
    (file,) = state_dir.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    return json.loads(json.loads(file.read_text())["body"])["num_tokens"]


async def test_answers_are_the_same_while_experts_move_and_after_a_start_with_kept_loads(
    groups: tuple[ServiceProcess, ServiceProcess], state_dir: Path
) -> None:
    moving = groups[1]
    expected, found = await asyncio.gather(*(played(group, NUM_PASSES) for group in groups))
    assert {version for version, _ in expected} == {0}
    assert found[-1][0] > 1
    # Of log-probabilities too.
    assert [answers for _, answers in expected] == [answers for _, answers in found]
    num_moved = moving.metric("outrider_worker_moved_experts_total")
    assert num_moved > 1
    assert moving.metric("outrider_worker_placement_imbalance") < 1.2

    moving.terminate()
    moving.process.wait()
    assert num_kept_tokens(state_dir) > NUM_SEQUENCES * 40
    moving.start()
    moving.wait_until_serving()
    ((_, answers),) = await played(moving, 1)
    assert answers == expected[0][1]
    # From the balanced placement it would move as many again.
    assert moving.metric("outrider_worker_moved_experts_total") < num_moved
