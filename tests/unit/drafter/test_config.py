"""The drafter's settings and what it reports of itself."""

import pytest
from prometheus_client import CollectorRegistry

from outrider.rpc.config import ConfigError
from services.drafter.config import Config
from services.drafter.metrics import MAX_NUM_TENANT_LABELS, MemoryCollector


def test_the_environment_sets_memory_and_ports() -> None:
    environ = {"OUTRIDER_DRAFTER_MEMORY_BYTES": "5000000", "OUTRIDER_DRAFTER_GRPC_PORT": "0"}
    config = Config.from_env(environ)
    assert (config.memory_bytes, config.listen.grpc_port, config.listen.http_port) == (5_000_000, 0, 9104)


@pytest.mark.parametrize("value", ["12", "much"])
def test_a_wrong_memory_size_is_refused_by_name(value) -> None:
    with pytest.raises(ConfigError, match=r"OUTRIDER_DRAFTER_.*"):
        Config.from_env({"OUTRIDER_DRAFTER_MEMORY_BYTES": value})


def test_many_tenants_share_one_time_series() -> None:
    registry = CollectorRegistry()
    registry.register(MemoryCollector(lambda: {f"t{number}": number for number in range(1000)}))
    (family,) = registry.collect()
    values = {sample.labels["tenant"]: sample.value for sample in family.samples}
    assert len(values) == MAX_NUM_TENANT_LABELS + 1
    assert sum(values.values()) == sum(range(1000))
    assert values["t999"] == 999
