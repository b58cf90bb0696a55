"""Moves the tiny model's experts in a real group, as its own tasks load them: one kind after another."""

import asyncio
import os
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.answers import Meter, asker
from benchmarks.stacks import stack
from outrider import AsyncClient
from outrider.model.config import ModelConfig
from outrider.model.placement import Loads, Placement, imbalance
from outrider.model.placement.eplb import begin_with
from outrider.model.shard import balanced_placement
from services.local.settings import DEFAULT_MODEL
from services.local.stack import Stack
from services.worker.loads_file import loads_path, read_loads
from training.tasks import Task, draw
from training.tasks.arithmetic import addition, multiplication, subtraction
from training.tasks.ordering import sorting

NUM_RANKS = (2, 4)
PHASES: Mapping[str, tuple[Task, ...]] = {
    "arithmetic": (addition, subtraction, multiplication),
    "sorting": (sorting,),
}
NUM_STREAMS = 4
SECONDS = 40
REBALANCE_SECONDS = 1
PREFIX = "outrider_worker_"
COUNTS = {
    "num_moves": "moved_experts_total",
    "moved_bytes": "moved_bytes_total",
    "num_rounds": "placing_seconds_count",
    "placing_seconds": "placing_seconds_sum",
}


async def rows() -> list[Mapping[str, Any]]:
    """Returns a row for each number of ranks and each kind of task, in the order in which they came."""
    os.environ["OUTRIDER_WORKER_REBALANCE_SECONDS"] = str(REBALANCE_SECONDS)
    found: list[Mapping[str, Any]] = []
    for num_ranks in NUM_RANKS:
        with tempfile.TemporaryDirectory() as state:
            async with stack(drafter=(), state=Path(state), num_ranks=num_ranks) as running:
                found += [row async for row in _phases(running, Path(state, "worker"), num_ranks)]
    return found


async def _phases(running: Stack, state: Path, num_ranks: int) -> AsyncIterator[Mapping[str, Any]]:
    url = running.children["worker"].program.http_url
    start = _balanced(num_ranks)
    before, loads_before = _counts(url), np.zeros((len(start.experts), start.num_experts))
    for kind, tasks in PHASES.items():
        await _ask(running.grpc_address, tasks)
        counts, loads = _counts(url), _kept(state, start)
        own = loads - loads_before
        yield {
            "part": "measured",
            "num_ranks": num_ranks,
            "tasks": kind,
            "balanced": imbalance(start, own),
            "eplb": imbalance(begin_with(start, own), own),
            "moves": _metric(url, "placement_imbalance"),
            **{name: counts[name] - before[name] for name in COUNTS},
        }
        before, loads_before = counts, loads


async def _ask(address: str, tasks: tuple[Task, ...]) -> None:
    async with AsyncClient(address) as client:
        ask = asker(client, Meter())

        async def stream(number: int) -> None:
            rng = Random(number)
            while True:
                problem = draw(rng, held_out=True, task=rng.choice(tasks))
                await ask(problem.question, temperature=0.0, max_tokens=400)

        streams = [asyncio.ensure_future(stream(number)) for number in range(NUM_STREAMS)]
        await asyncio.wait(streams, timeout=SECONDS)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


def _balanced(num_ranks: int) -> Placement:
    placement = balanced_placement(ModelConfig.from_directory(DEFAULT_MODEL), num_ranks)
    assert placement is not None
    return placement


def _kept(state: Path, placement: Placement) -> Loads:
    shape = (len(placement.experts), placement.num_experts)
    found = read_loads(loads_path(state, DEFAULT_MODEL, shape), shape)
    return found[0] if found else np.zeros(shape)


def _counts(url: str) -> dict[str, float]:
    return {name: _metric(url, metric) for name, metric in COUNTS.items()}


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{PREFIX}{name} "))
