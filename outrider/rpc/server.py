"""The server at the edge of every service: gRPC with health and reflection, and HTTP beside it."""

import asyncio
import os
import signal
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from outrider.rpc.channel import MAX_MESSAGE_BYTES, read_pem
from outrider.rpc.config import ConfigError
from outrider.rpc.health import Health
from outrider.rpc.http import HttpServer
from outrider.rpc.interceptors import EdgeInterceptor

CLEAN_UP_SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where a service listens, and by which certificates. Port 0: any free port."""

    host: str = "127.0.0.1"
    grpc_port: int
    http_port: int
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    # Set: clients must show a certificate of this authority.
    tls_client_ca: Path | None = None
    # Whether HTTP uses the certificate too; clients need show none there.
    http_tls: bool = False
    # How long requests in flight may go on after SIGTERM.
    drain_seconds: float = 30

    def __post_init__(self) -> None:
        for name in ("grpc_port", "http_port"):
            if not 0 <= getattr(self, name) < 65536:
                raise ValueError(f"{name} must lie in [0, 65535], is {getattr(self, name)}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_certificate is None and (self.tls_client_ca is not None or self.http_tls):
            raise ValueError("tls_client_ca and http_tls need tls_certificate")
        if self.drain_seconds < 0:
            raise ValueError(f"drain_seconds must not be negative, is {self.drain_seconds:g}")

    def address(self, port: int) -> str:
        """Returns HOST:PORT, with brackets round an IPv6 host."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class RpcServer:
    """Serves one gRPC service. Enter it, register servicers on `grpc`, start, work, call `set_serving`, wait.

    Leaving the context stops it: requests in flight may go on for `drain_seconds`.
    """

    def __init__(
        self,
        listen: Listen,
        *,
        service: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """`service` is the full name, such as outrider.v1.WorkerService."""
        self._listen = listen
        self._service = service
        self._health = Health(service)
        self._shutdown = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._http = HttpServer(self._health, drain_seconds=listen.drain_seconds)
        self._edge = EdgeInterceptor()
        self.grpc: grpc.aio.Server = grpc.aio.server(
            interceptors=[self._edge], options=_options(max_message_bytes)
        )
        self.grpc_port = 0
        self.http_port = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.set_serving(False)
        try:
            # After an error there is nothing left that could answer.
            self._http.stop()
            await self.grpc.stop(self._listen.drain_seconds if error is None else 0)
            await self._edge.wait_for_calls(CLEAN_UP_SECONDS)
        finally:
            await self._tasks.__aexit__(kind, error, traceback)

    async def start(self) -> None:
        """Binds both ports; health is NOT_SERVING. Raises ConfigError naming a port or file at fault."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (self._service, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self.grpc)
        listen = self._listen
        self._take_port("GRPC_PORT", listen.grpc_port).close()
        self.grpc_port = self._bind_grpc()
        http_socket = self._take_port("HTTP_PORT", listen.http_port)
        self.http_port = http_socket.getsockname()[1]
        await self.grpc.start()
        certificate = (listen.tls_certificate, listen.tls_key) if listen.http_tls else (None, None)
        self._tasks.create_task(self._http.serve(http_socket, *certificate))

    def _bind_grpc(self) -> int:
        listen = self._listen
        address = listen.address(listen.grpc_port)
        if listen.tls_certificate is None or listen.tls_key is None:
            return self.grpc.add_insecure_port(address)
        credentials = grpc.ssl_server_credentials(
            [_read_pair(listen.tls_certificate, listen.tls_key)],
            root_certificates=read_pem(listen.tls_client_ca) if listen.tls_client_ca else None,
            require_client_auth=listen.tls_client_ca is not None,
        )
        return self.grpc.add_secure_port(address, credentials)

    def _take_port(self, field: str, port: int) -> socket.socket:
        """Binds a port, also to learn why it is not to be had: gRPC logs the reason and raises without it."""
        host = self._listen.host
        try:
            return socket.create_server((host, port), family=_family(host), backlog=2048)
        except OSError as error:
            prefix = self._service.rsplit(".", 1)[-1].removesuffix("Service").upper()
            reason = os.strerror(error.errno) if error.errno else str(error)
            address = self._listen.address(port)
            raise ConfigError(f"OUTRIDER_{prefix}_{field}: cannot listen on {address}: {reason}") from None

    def set_serving(self, serving: bool) -> None:
        """Says whether requests can be answered now; not any more once the shutdown has begun."""
        self._health.serving = serving and not self._shutdown.is_set()

    def set_alive(self, alive: bool) -> None:
        """Says whether the process gets on with its work, or is stuck and should be started again."""
        self._health.alive = alive

    async def wait_for_shutdown(self) -> None:
        """Returns after SIGTERM or SIGINT, when health is NOT_SERVING; a second signal ends the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.begin_shutdown)
        try:
            await self._shutdown.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def begin_shutdown(self) -> None:
        """Does what a signal does: health says NOT_SERVING and `wait_for_shutdown` returns."""
        self._shutdown.set()
        self.set_serving(False)


def _read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Reads a key and its certificate; raises ConfigError naming them if they are no pair."""
    pair = read_pem(key), read_pem(certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ConfigError(f"{certificate} and {key}: {error.reason or error}") from None
    return pair


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _options(max_message_bytes: int) -> tuple[tuple[str, int], ...]:
    return (
        # Otherwise two processes share a port in silence.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Lets idle peers ping as often as our channels do; the default answers with "too many pings".
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client whose machine vanished must free its sequence.
        ("grpc.keepalive_time_ms", 5_000),
        ("grpc.keepalive_timeout_ms", 3_000),
        ("grpc.http2.ping_timeout_ms", 3_000),
    )
