"""The worker as a process: how it starts, stops, and refuses to start."""

import asyncio
import os
import signal
import sys

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.channel import connect
from services.worker.service import SERVICE
from tests.groups import BLOCK_SIZE, NUM_BLOCKS, Stream, prompt_of, scheduled, write_model
from tests.unit.model.random_models import interpreted_config, write_checkpoint


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


async def start(*, interpret="1", **variables):
    settings = {f"OUTRIDER_WORKER_{name}": str(value) for name, value in variables.items()}
    settings["TRITON_INTERPRET"] = interpret
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker",
        env=os.environ | {"OMP_NUM_THREADS": "1"} | settings, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def serving(channel):
    """Waits until the worker serves."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(  # pyright: ignore[reportAttributeAccessIssue]
        health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True
    )
    async for health in watch:
        if health.status == health_pb2.HealthCheckResponse.SERVING:
            break
    watch.cancel()


async def test_a_model_that_cannot_be_loaded_is_one_line_and_status_two(tmp_path):
    process = await start(MODEL_DIR=tmp_path, GRPC_PORT=0, HTTP_PORT=0)
    _, errors = await process.communicate()
    assert process.returncode == 2
    last = errors.decode().strip().splitlines()[-1]
    assert last.startswith(f"outrider worker: OUTRIDER_WORKER_MODEL_DIR: {tmp_path}/config.json")


async def test_kernels_that_cannot_run_are_one_line_and_status_two(model_dir):
    process = await start(MODEL_DIR=model_dir, BACKEND="triton", GRPC_PORT=0, HTTP_PORT=0, interpret="")
    _, errors = await process.communicate()
    assert process.returncode == 2
    last = errors.decode().strip().splitlines()[-1]
    assert last.startswith("outrider worker: OUTRIDER_WORKER_BACKEND: triton needs a CUDA device")


async def test_it_answers_with_the_kernels_for_gpus_as_with_torch_s(tmp_path, unused_tcp_port_factory):
    directory = write_checkpoint(tmp_path, interpreted_config())
    found = []
    for backend in ("torch", "triton"):
        port = unused_tcp_port_factory()
        process = await start(
            MODEL_DIR=directory, BACKEND=backend, GRPC_PORT=port, HTTP_PORT=0, NUM_BLOCKS=NUM_BLOCKS,
            BLOCK_SIZE=BLOCK_SIZE, MAX_NUM_BATCHED_TOKENS=4,
        )  # fmt: skip
        drained = asyncio.ensure_future(process.communicate())
        sequence = scheduled(0, prompt_of(0, 3), temperature=0.8, seed=5, num_logprobs=0)
        async with connect(f"127.0.0.1:{port}") as channel:
            await serving(channel)
            stream = Stream(channel, 1)
            await stream.open()
            output = await stream.step(1, [sequence.step(draft=[7])])
        process.send_signal(signal.SIGTERM)
        await drained
        assert process.returncode == 0
        found.append(output.outputs[0].tokens)
    torch_s, triton_s = found
    assert torch_s.token_ids == triton_s.token_ids
    assert [entry.logprob for entry in triton_s.logprobs] == pytest.approx(
        [entry.logprob for entry in torch_s.logprobs], abs=1e-4
    )


async def test_it_serves_once_the_model_is_loaded_and_stops_when_told(model_dir, unused_tcp_port):
    process = await start(MODEL_DIR=model_dir, GRPC_PORT=unused_tcp_port, HTTP_PORT=0, NUM_BLOCKS=8)
    drained = asyncio.ensure_future(process.communicate())
    async with connect(f"127.0.0.1:{unused_tcp_port}") as channel:
        await serving(channel)
    process.send_signal(signal.SIGTERM)
    _, errors = await drained
    assert process.returncode == 0
    assert '"event": "model_loaded"' in errors.decode()
