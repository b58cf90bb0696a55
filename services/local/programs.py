"""What each service of the local stack is told."""

import os
from collections.abc import Mapping

from services.local.child import Program
from services.local.ports import HOST, checked_port, free_ports
from services.local.settings import Settings

# In the order of starting.
SERVICES = ("worker", "drafter", "scheduler", "gateway")
# Enough for answers of a few seconds: at a keyboard, Ctrl-C means now.
DRAIN_SECONDS = 2


def programs(settings: Settings) -> list[Program]:
    """Returns the services to run with their ports; raises StartError naming a port that is not to be had."""
    inner = free_ports(2 * len(SERVICES))
    grpc_ports = dict(zip(SERVICES, inner[::2], strict=True))
    http_ports = dict(zip(SERVICES, inner[1::2], strict=True))
    if settings.grpc_port:
        grpc_ports["gateway"] = checked_port(settings.grpc_port, "--grpc-port")
    if settings.http_port:
        http_ports["gateway"] = checked_port(settings.http_port, "--http-port")
    addresses = {service: f"{HOST}:{port}" for service, port in grpc_ports.items()}
    own = _own_variables(settings, addresses)
    listen = {
        service: {
            "HOST": HOST,
            "GRPC_PORT": str(grpc_ports[service]),
            "HTTP_PORT": str(http_ports[service]),
            "DRAIN_SECONDS": str(DRAIN_SECONDS),
        }
        for service in SERVICES
    }
    return [
        Program(
            service=service,
            environment=_threads(service) | _prefixed(service, own[service] | listen[service]),
            address=addresses[service],
            http_url=f"{_http_scheme(service)}://{HOST}:{http_ports[service]}",
        )
        for service in SERVICES
        if service != "drafter" or settings.drafter
    ]


def _own_variables(settings: Settings, addresses: Mapping[str, str]) -> dict[str, dict[str, str]]:
    model, head = str(settings.model), settings.draft_head_directory
    worker, drafter = {"MODEL_DIR": model}, {"SOURCES": ",".join(settings.drafter), "NUM_THREADS": "1"}
    scheduler = {
        "WORKER": addresses["worker"],
        "DRAFTER": addresses["drafter"] if settings.drafter else "",
        "DRAFTER_SHARES_CORES": "true",
    }
    if settings.draft_model_directory is not None:
        drafter["MODEL_DIR"] = str(settings.draft_model_directory)
        drafter["TARGET_DIR"] = model
    if head is not None:
        worker["HEAD_DIR"] = drafter["HEAD_DIR"] = str(head)
        drafter["TARGET_DIR"] = model
    if settings.snapshot_directory is not None:
        drafter["SNAPSHOT_DIR"] = str(settings.snapshot_directory)
    if settings.scheduler_state_directory is not None:
        scheduler["STATE_DIR"] = str(settings.scheduler_state_directory)
    gateway = {"MODEL_DIR": model, "SCHEDULERS": addresses["scheduler"]}
    return {"worker": worker, "drafter": drafter, "scheduler": scheduler, "gateway": gateway}


def _prefixed(service: str, variables: Mapping[str, str]) -> dict[str, str]:
    return {f"OUTRIDER_{service.upper()}_{name}": value for name, value in variables.items()}


def _http_scheme(service: str) -> str:
    is_encrypted = os.environ.get(f"OUTRIDER_{service.upper()}_HTTP_TLS", "").lower() in ("1", "true", "yes")
    return "https" if is_encrypted else "http"


def _threads(service: str) -> dict[str, str]:
    """Returns how many threads compute, and that they sleep while they wait: four processes share the cores.

    A spinning thread takes a core from the process it waits for.
    """
    num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = {
        "OMP_NUM_THREADS": str(num_threads if service == "worker" else 1),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}
