"""A GPU that fails for good ends its worker, and is no sequence's fault."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import torch

from outrider.rpc.errors import OutriderError
from outrider.rpc.server import RpcServer
from services.worker import service
from services.worker.config import Config
from services.worker.device_lost import is_lost
from services.worker.lost import DeviceLost
from services.worker.messages import Batch
from services.worker.service import WorkerServicer, load_and_serve
from services.worker.session import Sessions
from services.worker.step import Stepper
from tests.groups import config_of, prompt_of, scheduled

ILLEGAL = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nfor debugging")
LAUNCH = RuntimeError("Triton Error [CUDA]: unspecified launch failure")
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")


def failing(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ILLEGAL, True),
        (LAUNCH, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), True),
        (NO_MEMORY, False),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_a_device_is_lost_by_its_own_errors_but_not_by_missing_memory(error: Exception, expected: bool):
    assert is_lost(error) is expected


async def ask_twice(stepper: Stepper) -> tuple[list[bool], list[OutriderError | Exception]]:
    """Returns what liveness and the two who ask for the step hear."""
    alive: list[bool] = []
    with ThreadPoolExecutor(1) as thread:
        sessions = Sessions(
            stepper, thread, step_seconds=300, set_alive=alive.append, on_lost=lambda: alive.append(False)
        )
        await sessions.open(1)
        batch = Batch(step_id=1, steps=[scheduled(0, prompt_of(1, 3)).step()], released_sequence_ids=[])
        errors = [
            raised
            for _ in range(2)
            for raised in await asyncio.gather(
                sessions.step(1, sessions.epoch, batch), return_exceptions=True
            )
            if isinstance(raised, Exception)
        ]
    return alive, errors


@pytest.mark.parametrize("error", [ILLEGAL, LAUNCH])
async def test_liveness_ends_for_good_and_the_scheduler_sees_the_group_gone(loaded, monkeypatch, error):
    monkeypatch.setattr(Stepper, "run", failing(error))
    alive, errors = await ask_twice(loaded)
    assert alive == [False, False]
    # UNAVAILABLE is the way to the group; INTERNAL would be counted against the sequences.
    assert [item.code for item in errors if isinstance(item, DeviceLost)] == 2 * [grpc.StatusCode.UNAVAILABLE]


async def test_a_step_without_memory_fails_alone(loaded, monkeypatch):
    monkeypatch.setattr(Stepper, "run", failing(NO_MEMORY))
    alive, errors = await ask_twice(loaded)
    assert alive == []
    assert errors == [NO_MEMORY, NO_MEMORY]


async def test_the_process_ends_with_the_error(model_dir, monkeypatch):
    config = config_of(model_dir)
    monkeypatch.setattr(Config, "from_env", lambda: config)
    monkeypatch.setattr(Stepper, "run", failing(ILLEGAL))
    ready: asyncio.Future[Sessions] = asyncio.get_running_loop().create_future()

    async def load_and_tell(config: Config, server: RpcServer, servicer: WorkerServicer, *rest: Any) -> None:
        await load_and_serve(config, server, servicer, *rest)
        assert servicer.sessions is not None
        ready.set_result(servicer.sessions)

    monkeypatch.setattr(service, "load_and_serve", load_and_tell)
    worker = asyncio.create_task(service.serve())
    sessions = await ready
    await sessions.open(1)
    batch = Batch(step_id=1, steps=[scheduled(0, prompt_of(1, 3)).step()], released_sequence_ids=[])
    with pytest.raises(DeviceLost):
        await sessions.step(1, sessions.epoch, batch)
    with pytest.raises(ExceptionGroup) as caught:
        await worker
    reason = "the device is lost: CUDA error: an illegal memory access was"
    assert caught.group_contains(DeviceLost, match=reason)
