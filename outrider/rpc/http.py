"""The HTTP side of a service: /healthz, /livez and /metrics, in the service's own loop."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outrider.rpc.health import Health


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the gRPC server, which drains both."""
        yield


class HttpServer:
    """Serves one Starlette application until `stop` is called."""

    def __init__(self, health: Health, *, drain_seconds: float) -> None:
        self._health = health
        self._config = uvicorn.Config(
            Starlette(
                routes=[
                    Route("/healthz", self._healthz),
                    Route("/livez", self._livez),
                    Route("/metrics", _metrics),
                ]
            ),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Zero would mean no limit to uvicorn.
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
        self._server = _Uvicorn(self._config)

    async def serve(self, listener: socket.socket, certificate: Path | None, key: Path | None) -> None:
        """Answers requests until `stop`, and then those in flight for the drain time."""
        self._config.ssl_certfile, self._config.ssl_keyfile = certificate, key
        with listener:
            await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Lets the requests in flight end, then makes `serve` return."""
        self._server.should_exit = True

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n") if self._health.serving else PlainTextResponse("not serving\n", 503)

    async def _livez(self, request: Request) -> Response:
        return PlainTextResponse("ok\n") if self._health.alive else PlainTextResponse("stuck\n", 503)


async def _metrics(request: Request) -> Response:
    return Response(
        prometheus_client.generate_latest(), headers={"content-type": prometheus_client.CONTENT_TYPE_LATEST}
    )
