"""Measures what it costs to split a model over ranks: steps of one rank and of two, on the same machine.

    python -m benchmarks.ranks [--num-steps 100] [--num-rounds 3] [--results DIR]

Real workers, one thread for each rank, are stepped by their stream as a scheduler does it. Prints a line per
row, and writes docs/results/ranks.json and docs/ranks.md. Groups of one and two ranks take turns; a figure
is the median over the steps of all turns.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import grpc

from benchmarks import ranks_page, results
from benchmarks.random_moe import write_random_moe
from outrider.params import SamplingParams, SequenceParams
from outrider.rpc.channel import connect
from outrider.v1 import worker_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.local.ports import HOST, free_ports
from services.local.settings import DEFAULT_MODEL

NUM_RANKS = (1, 2)
NUM_SEQUENCES = (1, 8)
NUM_BLOCKS, BLOCK_SIZE, PROMPT_LENGTH = 1024, 16, 32
PREFIX = "outrider_worker_"


@dataclass(slots=True)
class Times:
    """Milliseconds of steps of one shape."""

    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    exchange: list[float] = field(default_factory=list)
    broadcast: list[float] = field(default_factory=list)
    num_calls: float = 0
    num_bytes: float = 0


class Scheduler:
    """Steps a worker's sequences as its only scheduler."""

    def __init__(self, channel: grpc.aio.Channel, url: str) -> None:
        self._url = url
        self._call: Any = worker_pb2_grpc.WorkerServiceStub(channel).Step()
        self._ids: dict[str, int] = {"session": 1, "epoch": 0}
        self._step_id = 0

    async def open(self) -> None:
        """Waits until the worker serves, and opens a session."""
        opened = await self._ask(open=pb.OpenSession())
        self._ids["epoch"] = opened.epoch

    async def measure(self, num_sequences: int, num_steps: int, times: Times) -> None:
        """Starts sequences, steps each by a token at a time, and drops them."""
        params = SequenceParams(sampling=SamplingParams(temperature=0.0, ignore_eos=True)).to_proto()
        num_blocks = NUM_BLOCKS // max(NUM_SEQUENCES)
        steps = [
            pb.SequenceStep(
                sequence_id=number,
                start=pb.SequenceStart(
                    token_ids=[(7 * number + place) % 90 for place in range(PROMPT_LENGTH)],
                    num_prompt_tokens=PROMPT_LENGTH,
                    params=params,
                ),
                num_new_tokens=PROMPT_LENGTH,
                new_block_ids=range(number * num_blocks, (number + 1) * num_blocks),
            )
            for number in range(num_sequences)
        ]
        await self._step(steps)
        before = self._counts()
        for number in range(num_steps):
            began = perf_counter()
            output = await self._step(
                pb.SequenceStep(
                    sequence_id=sequence, num_computed_tokens=PROMPT_LENGTH + number, num_new_tokens=1
                )
                for sequence in range(num_sequences)
            )
            times.step.append(1e3 * (perf_counter() - began))
            times.forward.append(output.forward_us / 1e3)
            times.exchange.append(output.exchange_us / 1e3)
        after = self._counts()
        spent = {name: after[name] - before[name] for name in after}
        times.num_calls = spent["exchanges_total"] / num_steps
        times.num_bytes = spent["exchanged_bytes_total"] / num_steps
        times.broadcast.append(1e3 * spent["broadcast_seconds_sum"] / num_steps)
        await self._step([], released=range(num_sequences))

    async def _step(self, steps: Iterable[pb.SequenceStep], released: Iterable[int] = ()) -> pb.BatchOutput:
        self._step_id += 1
        batch = pb.Batch(step_id=self._step_id, sequences=steps, released_sequence_ids=released)
        return (await self._ask(batch=batch)).output

    async def _ask(self, **request: Any) -> pb.StepResponse:
        await self._call.write(pb.StepRequest(**self._ids, **request))
        response = await self._call.read()
        assert isinstance(response, pb.StepResponse), await self._call.details()
        return response

    def _counts(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        names = ("exchanges_total", "exchanged_bytes_total", "broadcast_seconds_sum")
        return {name: float(re.findall(rf"^{PREFIX}{name} (\S+)", text, re.M)[0]) for name in names}


@contextlib.asynccontextmanager
async def running(model: Path, num_ranks: int) -> AsyncIterator[Scheduler]:
    """Runs a worker that serves."""
    grpc_port, http_port = free_ports(2, num_ranks=num_ranks)
    settings = {
        "MODEL_DIR": model, "NUM_RANKS": num_ranks, "GRPC_PORT": grpc_port, "HTTP_PORT": http_port,
        "NUM_BLOCKS": NUM_BLOCKS, "BLOCK_SIZE": BLOCK_SIZE, "REBALANCE_SECONDS": 0, "NUM_THREADS": 1,
    }  # fmt: skip
    variables = {f"OUTRIDER_WORKER_{name}": str(value) for name, value in settings.items()}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | variables
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    url = f"http://{HOST}:{http_port}"
    try:
        await _until_serving(process, url)
        async with connect(f"{HOST}:{grpc_port}") as channel:
            scheduler = Scheduler(channel, url)
            await scheduler.open()
            yield scheduler
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _until_serving(process: asyncio.subprocess.Process, url: str) -> None:
    while process.returncode is None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(urllib.request.urlopen, f"{url}/healthz", timeout=10)
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the worker has ended with status {process.returncode}")


async def measure(models: Mapping[str, Path], num_steps: int, num_rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each model, number of ranks and number of sequences."""
    found = {
        (model, ranks, count): Times() for model in models for ranks in NUM_RANKS for count in NUM_SEQUENCES
    }
    for _ in range(num_rounds):
        for model, directory in models.items():
            for ranks in NUM_RANKS:
                async with running(directory, ranks) as scheduler:
                    for count in NUM_SEQUENCES:
                        await scheduler.measure(count, num_steps, found[model, ranks, count])
    layers = {name: _num_layers(directory) for name, directory in models.items()}
    return [_row(*key, times, layers[key[0]]) for key, times in found.items()]


def _num_layers(directory: Path) -> int:
    return json.loads((directory / "config.json").read_text())["num_hidden_layers"]


def _row(model: str, num_ranks: int, num_sequences: int, times: Times, num_layers: int) -> dict[str, Any]:
    exchange = median(times.exchange)
    return {
        "model": model,
        "num_ranks": num_ranks,
        "num_sequences": num_sequences,
        "step_ms": median(times.step),
        "forward_ms": median(times.forward),
        "exchange_ms": exchange,
        "exchange_ms_per_layer": exchange / num_layers,
        "exchanges_per_layer": times.num_calls / num_layers,
        "bytes_per_layer": times.num_bytes / num_layers,
        "broadcast_ms": median(times.broadcast),
    }


def main() -> None:
    """Measures the tiny model and a random one of a size that reading weights takes most of a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-steps", type=int, default=100)
    parser.add_argument("--num-rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        models = {"tiny": DEFAULT_MODEL, "random": write_random_moe(Path(directory))}
        rows = asyncio.run(measure(models, arguments.num_steps, arguments.num_rounds))
    for row in rows:
        print(json.dumps(row))
    results.save(ranks_page.NAME, rows, arguments.results)
    ranks_page.write(arguments.results)


if __name__ == "__main__":
    main()
