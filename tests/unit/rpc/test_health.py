from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb

from outrider.rpc.errors import NotFound
from outrider.rpc.health import Health

SERVICE = "outrider.v1.WorkerService"
CONTEXT = cast(grpc.aio.ServicerContext, None)


async def check(health: Health, service: str) -> int:
    return (await health.Check(pb.HealthCheckRequest(service=service), CONTEXT)).status


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_a_service_begins_as_not_serving(name: str) -> None:
    health = Health(SERVICE)
    assert await check(health, name) == pb.HealthCheckResponse.NOT_SERVING
    health.serving = True
    assert await check(health, name) == pb.HealthCheckResponse.SERVING


async def test_another_services_health_is_not_known_here() -> None:
    with pytest.raises(NotFound, match="Drafter"):
        await check(Health(SERVICE), "outrider.v1.DrafterService")


async def test_every_watcher_hears_of_changes_also_after_one_has_left() -> None:
    health = Health(SERVICE)
    first, second = (health.Watch(pb.HealthCheckRequest(), CONTEXT) for _ in range(2))
    seen = [(await anext(first)).status, (await anext(second)).status]
    await first.aclose()  # type: ignore[attr-defined]
    health.serving = True
    seen.append((await anext(second)).status)
    states = pb.HealthCheckResponse
    assert seen == [states.NOT_SERVING, states.NOT_SERVING, states.SERVING]
