"""The worker as a process: how it starts, stops, and refuses to start."""

import asyncio
import os
import signal
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.worker.service import SERVICE
from tests.groups import write_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


async def start(**variables):
    settings = {f"OUTRIDER_WORKER_{name}": str(value) for name, value in variables.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker",
        env=os.environ | {"OMP_NUM_THREADS": "1"} | settings, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_model_that_cannot_be_loaded_is_one_line_and_status_two(tmp_path):
    process = await start(MODEL_DIR=tmp_path, GRPC_PORT=0, HTTP_PORT=0)
    _, errors = await process.communicate()
    assert process.returncode == 2
    last = errors.decode().strip().splitlines()[-1]
    assert last.startswith(f"outrider worker: OUTRIDER_WORKER_MODEL_DIR: {tmp_path}/config.json")


async def test_it_serves_once_the_model_is_loaded_and_stops_when_told(model_dir, unused_tcp_port):
    process = await start(MODEL_DIR=model_dir, GRPC_PORT=unused_tcp_port, HTTP_PORT=0, NUM_BLOCKS=8)
    drained = asyncio.ensure_future(process.communicate())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{unused_tcp_port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(  # pyright: ignore[reportAttributeAccessIssue]
            health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True
        )
        async for health in watch:
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()
    process.send_signal(signal.SIGTERM)
    _, errors = await drained
    assert process.returncode == 0
    assert '"event": "model_loaded"' in errors.decode()
