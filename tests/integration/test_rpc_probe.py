"""The health client that container images ask their own service with."""

import asyncio
import sys

import pytest

from outrider.rpc.server import Listen, RpcServer


async def probe(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outrider.rpc.probe", *arguments, stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.parametrize(
    ("serving", "name", "expected"),
    [
        (True, "", (0, "SERVING\n")),
        (False, "", (1, "NOT_SERVING\n")),
        # A process that waits for its peers lives.
        (False, "liveness", (0, "SERVING\n")),
    ],
)
async def test_the_probe_says_whether_a_service_serves(serving, name, expected) -> None:
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    async with RpcServer(listen, service="outrider.v1.DrafterService") as server:
        await server.start()
        server.set_serving(serving)
        found = await probe(f"127.0.0.1:{server.grpc_port}", "--service", name, "--timeout", "60")
    assert found == expected


async def test_a_service_on_this_machine_is_asked_by_its_name(monkeypatch) -> None:
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    async with RpcServer(listen, service="outrider.v1.DrafterService") as server:
        await server.start()
        monkeypatch.setenv("OUTRIDER_DRAFTER_GRPC_PORT", str(server.grpc_port))
        assert await probe("drafter", "--timeout", "60") == (1, "NOT_SERVING\n")
    status, output = await probe("gateway")
    assert status == 2
    assert "OUTRIDER_GATEWAY_GRPC_PORT" in output


async def test_the_probe_fails_where_nothing_listens() -> None:
    status, output = await probe("127.0.0.1:1", "--timeout", "1")
    assert status == 1
    assert output.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED"))


async def test_the_probe_names_a_certificate_that_is_not_there(tmp_path) -> None:
    status, output = await probe("127.0.0.1:1", "--ca", str(tmp_path / "none.pem"))
    assert status == 2
    assert "none.pem" in output
