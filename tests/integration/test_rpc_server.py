"""The edge of a service, over real connections."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.client.status import error_of
from outrider.rpc.channel import ChannelTls, connect
from outrider.rpc.config import ConfigError
from outrider.rpc.errors import Internal, InvalidArgument, NotFound, OutriderError, ResourceExhausted
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc

SERVICE = "outrider.v1.DrafterService"
Answer = Callable[[], AsyncIterator[pb.ProposeResponse]]


class Scripted(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers each stream as its test says."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def Propose(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ProposeResponse]:
        return self._answer()


def server(listen: Listen, answer: Answer) -> RpcServer:
    made = RpcServer(listen, service=SERVICE)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(Scripted(answer), made.grpc)
    return made


def anywhere(drain_seconds: float = 1) -> Listen:
    return Listen(grpc_port=0, http_port=0, drain_seconds=drain_seconds)


async def no_answer() -> AsyncIterator[pb.ProposeResponse]:
    return
    yield


def raises(error: Exception) -> Answer:
    async def answer() -> AsyncIterator[pb.ProposeResponse]:
        yield pb.ProposeResponse()
        async with asyncio.TaskGroup():
            raise error

    return answer


async def ask(port: int, tls: ChannelTls | None = None, host: str = "127.0.0.1") -> list[pb.ProposeResponse]:
    async with connect(f"{host}:{port}", tls) as channel:
        call = drafter_pb2_grpc.DrafterServiceStub(channel).Propose()
        return [answer async for answer in call]


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("must lie in [0, 1]", field="sampling.top_p"),
        ResourceExhausted("full", retry_delay=timedelta(seconds=1.5)),
        NotFound("grüße 模型"),
    ],
)
async def test_a_domain_error_reaches_the_client_whole_also_out_of_a_task_group(error: OutriderError) -> None:
    async with server(anywhere(), raises(error)) as running:
        await running.start()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(running.grpc_port)
    seen = error_of(raised.value)
    assert type(seen) is type(error)
    assert (seen.message, seen.field, seen.retry_delay) == (error.message, error.field, error.retry_delay)


@pytest.mark.parametrize("error", [KeyError("a secret"), Internal("an invariant is broken" + "!" * 9000)])
async def test_an_internal_error_fits_the_headers_and_an_unknown_one_says_nothing_of_itself(
    error: Exception,
) -> None:
    async with server(anywhere(), raises(error)) as running:
        await running.start()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(running.grpc_port)
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert str(raised.value.details()).startswith(("internal error", "an invariant is broken!"))
    assert "secret" not in str(raised.value.details())


async def test_a_cancelled_stream_cleans_up_at_once() -> None:
    cleaned = asyncio.Event()

    async def answer() -> AsyncIterator[pb.ProposeResponse]:
        try:
            while True:
                yield pb.ProposeResponse()
        finally:
            cleaned.set()

    async with server(anywhere(), answer) as running:
        await running.start()
        async with connect(f"127.0.0.1:{running.grpc_port}") as channel:
            call = drafter_pb2_grpc.DrafterServiceStub(channel).Propose(iter(()))
            await call.read()
            call.cancel()
            await asyncio.wait_for(cleaned.wait(), 20)


async def test_a_stream_in_flight_ends_as_it_should_while_the_server_stops() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def answer() -> AsyncIterator[pb.ProposeResponse]:
        begun.set()
        await go_on.wait()
        yield pb.ProposeResponse(drafts=[pb.Draft(sequence_id=7)])

    async with server(anywhere(drain_seconds=60), answer) as running:
        await running.start()
        asking = asyncio.create_task(ask(running.grpc_port))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.2, go_on.set)
    (response,) = await asking
    assert response.drafts[0].sequence_id == 7


async def test_a_stream_that_outlasts_the_drain_is_cut_off_and_cleans_up_before_the_server_is_gone() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def answer() -> AsyncIterator[pb.ProposeResponse]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield pb.ProposeResponse()
        finally:
            cleaned.set()

    async with server(anywhere(drain_seconds=0.1), answer) as running:
        await running.start()
        asking = asyncio.create_task(ask(running.grpc_port))
        await begun.wait()
    assert cleaned.is_set()
    with pytest.raises(grpc.aio.AioRpcError):
        await asking


async def test_health_shows_on_grpc_and_http_and_reflection_names_the_service() -> None:
    async with server(anywhere(), no_answer) as running, httpx.AsyncClient() as http:
        await running.start()
        url = f"http://127.0.0.1:{running.http_port}"
        assert (await http.get(f"{url}/healthz")).status_code == 503
        running.set_serving(True)
        assert (await http.get(f"{url}/healthz")).status_code == 200
        assert "python_info" in (await http.get(f"{url}/metrics")).text
        async with connect(f"127.0.0.1:{running.grpc_port}") as channel:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            health = await health_pb2_grpc.HealthStub(channel).Check(request)  # type: ignore[attr-defined]
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
            names = reflection_pb2.ServerReflectionRequest(list_services="")
            async for answer in reflection.ServerReflectionInfo(iter((names,))):  # type: ignore[attr-defined]
                assert SERVICE in [item.name for item in answer.list_services_response.service]


@pytest.mark.parametrize("variable", ["OUTRIDER_DRAFTER_GRPC_PORT", "OUTRIDER_DRAFTER_HTTP_PORT"])
async def test_a_port_in_use_is_named(variable: str) -> None:
    async with server(anywhere(), no_answer) as running:
        await running.start()
        field = variable.removeprefix("OUTRIDER_DRAFTER_").lower()
        port = getattr(running, field)
        taken = replace(anywhere(), **{field: port})
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=rf"{variable}.*{port}.*in use")):
            async with server(taken, no_answer) as second:
                await second.start()


async def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_text("no certificate")
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=r"server\.pem")):
        async with server(replace(anywhere(), tls_certificate=file, tls_key=file), no_answer) as running:
            await running.start()


PROGRAM = """
import asyncio
from outrider.rpc.main import run_service
from outrider.rpc.server import Listen, RpcServer

async def main():
    listen = Listen(grpc_port={grpc_port}, http_port=0)
    async with RpcServer(listen, service="outrider.v1.DrafterService") as server:
        await server.start()
        server.set_serving(True)
        # Printed once the wait below has begun.
        asyncio.get_running_loop().call_soon(lambda: print(server.grpc_port, flush=True))
        await server.wait_for_shutdown()
        print("stopping", flush=True)

run_service("drafter", main)
"""


def spawn(grpc_port: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(grpc_port=grpc_port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_service_in_order(number: signal.Signals) -> None:
    with spawn(0) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(number)
        assert process.communicate() == ("stopping\n", "")
    assert process.returncode == 0


def test_a_service_whose_port_is_taken_says_so_in_one_line() -> None:
    with spawn(0) as first:
        assert first.stdout is not None
        port = int(first.stdout.readline())
        with spawn(port) as second:
            output, errors = second.communicate()
        first.kill()
    assert (second.returncode, output) == (2, "")
    reason = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert errors.splitlines() == [f"outrider drafter: OUTRIDER_DRAFTER_GRPC_PORT: {reason}"]


def issue(directory: Path, name: str, *, authority: str | None = None) -> None:
    """Makes `name`.pem and `name`.key, signed by `authority` or by itself."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]
    signer = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"] if authority else []
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *key, *signer, *names, "-days", "2", "-out", f"{name}.pem"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env=dict(os.environ))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to issue certificates")
async def test_with_mutual_tls_only_a_client_with_the_authoritys_certificate_gets_in(tmp_path: Path) -> None:
    for name in ("authority", "stranger"):
        issue(tmp_path, name)
    for name in ("server", "client"):
        issue(tmp_path, name, authority="authority")
    ca = tmp_path / "authority.pem"
    listen = Listen(
        grpc_port=0,
        http_port=0,
        tls_certificate=tmp_path / "server.pem",
        tls_key=tmp_path / "server.key",
        tls_client_ca=ca,
        http_tls=True,
    )
    known, stranger = (
        ChannelTls(
            peer_tls_ca=ca,
            peer_tls_certificate=tmp_path / f"{name}.pem",
            peer_tls_key=tmp_path / f"{name}.key",
        )
        for name in ("client", "stranger")
    )
    async with server(listen, no_answer) as running:
        await running.start()
        assert await ask(running.grpc_port, known) == []
        for tls in (stranger, ChannelTls(peer_tls_ca=ca), None):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask(running.grpc_port, tls)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=ca)) as http:
            assert (await http.get(f"https://127.0.0.1:{running.http_port}/healthz")).status_code == 503
