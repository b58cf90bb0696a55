"""The health of a service, as grpc.health.v1, /healthz and /livez show it."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from outrider.rpc.errors import NotFound

LIVENESS = "liveness"


class Health(health_pb2_grpc.HealthServicer):
    """Answers for the named service and for the server as a whole (""); starts as NOT_SERVING.

    The name `liveness` serves until the process itself is stuck: one that waits for its peers is not to be
    restarted for it.

    The servicer of grpcio-health-checking starts as SERVING and forgets watchers when one of them leaves.
    """

    def __init__(self, service: str) -> None:
        self._names = ("", service, LIVENESS)
        self._serving = False
        self._alive = True
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether requests can be answered now."""
        return self._serving

    @serving.setter
    def serving(self, serving: bool) -> None:
        self._serving = serving
        self._tell()

    @property
    def alive(self) -> bool:
        """Whether the process gets on with its work, or at least may."""
        return self._alive

    @alive.setter
    def alive(self, alive: bool) -> None:
        # A worker says so after each step: watchers hear of changes only.
        if alive != self._alive:
            self._alive = alive
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _response(self, name: str) -> pb.HealthCheckResponse:
        if name not in self._names:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        serving = self._alive if name == LIVENESS else self._serving
        status = pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING
        return pb.HealthCheckResponse(status=status)

    async def Check(  # noqa: N802
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthCheckResponse:
        """Answers once."""
        if request.service not in self._names:
            raise NotFound(f"no service {request.service!r} here", field="service")
        return self._response(request.service)

    async def Watch(  # noqa: N802
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Answers now and after each change."""
        while True:
            changed = self._changed
            yield self._response(request.service)
            await changed.wait()
