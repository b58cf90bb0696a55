"""What each service of the local stack is told."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.local.child import Program
from services.local.liveness import LIVENESS_SECONDS
from services.local.ports import HOST, checked_port, free_ports
from services.local.settings import Settings, name_of

# Enough for answers of a few seconds: at a keyboard, Ctrl-C means now.
DRAIN_SECONDS = 2


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A service of the stack and where it listens."""

    service: str
    pair: int
    grpc_port: int
    http_port: int

    @property
    def name(self) -> str:
        return name_of(self.service, self.pair)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.grpc_port}"


def programs(settings: Settings) -> list[Program]:
    """Returns what to run, in the order of starting; raises StartError naming a port that is taken."""
    places = _places(settings)
    addresses = {place.name: place.address for place in places}
    return [
        Program(
            service=place.service,
            name=place.name,
            environment=_threads(place.service, settings)
            | _prefixed(place.service, _own_variables(place, settings, addresses) | _listen(place)),
            address=place.address,
            http_url=f"{_http_scheme(place.service)}://{HOST}:{place.http_port}",
            silence_seconds=_silence_seconds(place.service, settings),
        )
        for place in places
    ]


def _services(settings: Settings) -> Iterator[tuple[str, int]]:
    """Yields each service with its pair's number; drafter and gateway are everybody's."""
    yield from (("worker", pair) for pair in settings.pairs)
    if settings.drafter:
        yield "drafter", 1
    yield from (("scheduler", pair) for pair in settings.pairs)
    yield "gateway", 1


def _places(settings: Settings) -> list[_Place]:
    services = list(_services(settings))
    inner = free_ports(2 * len(services), num_ranks=settings.num_ranks)
    *others, gateway = [
        _Place(service=service, pair=pair, grpc_port=grpc_port, http_port=http_port)
        for (service, pair), grpc_port, http_port in zip(services, inner[::2], inner[1::2], strict=True)
    ]
    chosen = _Place(
        service="gateway",
        pair=1,
        grpc_port=checked_port(settings.grpc_port, "--grpc-port") or gateway.grpc_port,
        http_port=checked_port(settings.http_port, "--http-port") or gateway.http_port,
    )
    return [*others, chosen]


def _own_variables(place: _Place, settings: Settings, addresses: Mapping[str, str]) -> dict[str, str]:
    match place.service:
        case "worker":
            return _worker_variables(place.pair, settings)
        case "drafter":
            return _drafter_variables(settings)
        case "scheduler":
            return _scheduler_variables(place.pair, settings, addresses)
        case _:
            schedulers = [addresses[name_of("scheduler", pair)] for pair in settings.pairs]
            return {"MODEL_DIR": str(settings.model), "SCHEDULERS": ",".join(schedulers)}


def _worker_variables(pair: int, settings: Settings) -> dict[str, str]:
    worker = {"MODEL_DIR": str(settings.model), "NUM_RANKS": str(settings.num_ranks)}
    if settings.draft_head_directory is not None:
        worker["HEAD_DIR"] = str(settings.draft_head_directory)
    if (directory := settings.worker_state_directory(pair)) is not None:
        worker["STATE_DIR"] = str(directory)
    return worker


def _drafter_variables(settings: Settings) -> dict[str, str]:
    directories = {
        "MODEL_DIR": settings.draft_model_directory,
        "HEAD_DIR": settings.draft_head_directory,
        "SNAPSHOT_DIR": settings.snapshot_directory,
    }
    if settings.draft_model_directory or settings.draft_head_directory:
        directories["TARGET_DIR"] = settings.model
    drafter = {name: str(directory) for name, directory in directories.items() if directory is not None}
    return drafter | {"SOURCES": ",".join(settings.drafter), "NUM_THREADS": "1"}


def _scheduler_variables(pair: int, settings: Settings, addresses: Mapping[str, str]) -> dict[str, str]:
    scheduler = {
        "WORKER": addresses[name_of("worker", pair)],
        "DRAFTER": addresses.get("drafter", ""),
        "DRAFTER_SHARES_CORES": "true",
    }
    if (directory := settings.scheduler_state_directory(pair)) is not None:
        scheduler["STATE_DIR"] = str(directory)
    return scheduler


def _listen(place: _Place) -> dict[str, str]:
    return {
        "HOST": HOST,
        "GRPC_PORT": str(place.grpc_port),
        "HTTP_PORT": str(place.http_port),
        "DRAIN_SECONDS": str(DRAIN_SECONDS),
    }


def _prefixed(service: str, variables: Mapping[str, str]) -> dict[str, str]:
    return {f"OUTRIDER_{service.upper()}_{name}": value for name, value in variables.items()}


def _http_scheme(service: str) -> str:
    is_encrypted = os.environ.get(f"OUTRIDER_{service.upper()}_HTTP_TLS", "").lower() in ("1", "true", "yes")
    return "https" if is_encrypted else "http"


def _silence_seconds(service: str, settings: Settings) -> float:
    """Returns how long a service may be silent: ranks watch each other, and are sooner back if they do it."""
    return LIVENESS_SECONDS * (2 if service == "worker" and settings.num_ranks > 1 else 1)


def _threads(service: str, settings: Settings) -> dict[str, str]:
    """Returns how many threads compute, and that they sleep while they wait: all processes share the cores.

    A spinning thread takes a core from the process it waits for. Every pair has as many threads, for their
    number is part of the numerics id.
    """
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = max(1, num_cores // (settings.num_ranks * settings.num_pairs)) if service == "worker" else 1
    wanted = {
        "OMP_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
