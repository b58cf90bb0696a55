"""The compose stack: the same four services, closed to everyone but the machine that runs them."""

import re
from pathlib import Path

import pytest
import yaml

from tests.unit.deploy.configs import CONFIGS

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IMAGE_ENVIRONMENT = dict(re.findall(r"(OUTRIDER_\w+)=(\S+)", DOCKERFILE))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
PAIRS = yaml.safe_load((ROOT / "docker-compose.pairs.yml").read_text())


def settings(service: str, **environ: str) -> dict[str, str]:
    """Returns what a service's settings are read from; `environ` is what the user's shell has."""

    def known(match: re.Match[str]) -> str:
        return environ.get(match[1], match[2])

    own = SERVICES[service]["environment"]
    return IMAGE_ENVIRONMENT | {
        name: re.sub(r"\$\{(\w+):-(.*?)\}", known, str(value)) for name, value in own.items()
    }


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration[:-1])


def test_the_stack_is_the_four_services() -> None:
    assert SERVICES.keys() == CONFIGS.keys()


@pytest.mark.parametrize("service", CONFIGS)
def test_the_settings_are_settings_of_the_service(service) -> None:
    config = CONFIGS[service].from_env(settings(service))
    assert config.listen.host == "0.0.0.0"
    assert seconds(SERVICES[service]["stop_grace_period"]) > config.listen.drain_seconds


@pytest.mark.parametrize("service", CONFIGS)
def test_a_container_may_do_nothing_that_it_need_not(service) -> None:
    container = SERVICES[service]
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["mem_limit"]
    assert container["build"]["args"] == {"SERVICE": service}


@pytest.mark.parametrize(
    ("service", "variable"),
    [("drafter", "OUTRIDER_DRAFTER_SNAPSHOT_DIR"), ("scheduler", "OUTRIDER_SCHEDULER_STATE_DIR")],
)
def test_what_is_learnt_lies_on_a_volume_of_its_own(service, variable) -> None:
    directory = SERVICES[service]["environment"][variable]
    (mount,) = SERVICES[service]["volumes"]
    volume, _, path = mount.partition(":")
    assert path == directory
    assert volume in COMPOSE["volumes"]
    others = [other for other in SERVICES.values() if other is not SERVICES[service]]
    assert mount not in [mount for other in others for mount in other.get("volumes", ())]
    # An empty volume takes over owner and mode of what the image has there.
    made = f"os.makedirs('{directory}', 0o700); os.chown('{directory}', 10001, 10001)"
    assert DOCKERFILE.index(made) < DOCKERFILE.index("USER 10001:10001")


def test_threads_that_wait_sleep() -> None:
    assert re.search(r"^ENV [^#]*OMP_WAIT_POLICY=PASSIVE", DOCKERFILE, re.MULTILINE)


def test_only_the_gateway_is_published_and_only_here() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:50051:50051", "127.0.0.1:8080:8080"]}


def test_each_service_waits_for_the_one_that_it_calls() -> None:
    needs = {
        name: {other for other, how in service.get("depends_on", {}).items() if how.get("required", True)}
        for name, service in SERVICES.items()
    }
    assert needs == {"worker": set(), "drafter": set(), "scheduler": {"worker"}, "gateway": {"scheduler"}}
    waits = [how for service in SERVICES.values() for how in service.get("depends_on", {}).values()]
    assert {how["condition"] for how in waits} == {"service_healthy"}


def test_addresses_name_a_service_and_its_port() -> None:
    for service, config in CONFIGS.items():
        port = config.from_env(settings(service)).listen.grpc_port
        named = [value for other in SERVICES.values() for value in map(str, other["environment"].values())]
        assert service == "gateway" or f"{service}:{port}" in named


def test_a_gateway_cannot_reach_a_worker() -> None:
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert not networks["gateway"] & (networks["worker"] | networks["drafter"])
    assert networks["scheduler"] >= networks["gateway"] | networks["worker"] | networks["drafter"]


def test_the_shell_says_how_many_ranks_hold_the_model_and_with_how_many_threads() -> None:
    assert CONFIGS["worker"].from_env(settings("worker")).group.num_ranks == 1
    config = CONFIGS["worker"].from_env(settings("worker", RANKS="2", THREADS="1"))
    assert (config.group.num_ranks, config.num_threads) == (2, 1)


def test_a_second_pair_is_like_the_first_but_for_whom_it_calls_and_where_it_keeps_things() -> None:
    services = PAIRS["services"]
    assert services.keys() == {"worker-2", "scheduler-2", "gateway"}
    for name, service in (("worker-2", "worker"), ("scheduler-2", "scheduler")):
        assert services[name]["extends"] == {"file": "docker-compose.yml", "service": service}
    assert services["worker-2"].keys() == {"extends"}
    assert services["scheduler-2"]["environment"] == {"OUTRIDER_SCHEDULER_WORKER": "worker-2:50053"}
    (mount,) = services["scheduler-2"]["volumes"]
    volume, _, path = mount.partition(":")
    assert path == SERVICES["scheduler"]["environment"]["OUTRIDER_SCHEDULER_STATE_DIR"]
    assert volume in PAIRS["volumes"].keys() - COMPOSE["volumes"].keys()
    gateway = CONFIGS["gateway"].from_env(settings("gateway") | services["gateway"]["environment"])
    assert gateway.schedulers == ("scheduler:50052", "scheduler-2:50052")
