"""What the local stack is asked to run, and what each service is told for it."""

import itertools
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.local.child import Program, StartError

HOST = "127.0.0.1"
DEFAULT_MODEL = Path(__file__).parents[2] / "models" / "tiny"
# In the order of starting.
SERVICES = ("worker", "drafter", "scheduler", "gateway")
DRAFT_SOURCES = ("suffix",)
INNER_PORTS = (20_000, 32_768)
# Enough for answers of a few seconds: at a keyboard, Ctrl-C means now.
DRAIN_SECONDS = 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Port 0: any free one. An empty `drafter`: no speculation."""

    model: Path = DEFAULT_MODEL
    drafter: tuple[str, ...] = DRAFT_SOURCES
    grpc_port: int = 50051
    http_port: int = 8080

    def check(self) -> None:
        """Raises StartError naming the option that is wrong."""
        for name in ("config.json", "tokenizer_config.json"):
            if not (self.model / name).is_file():
                raise StartError(f"--model {self.model}: no {name} in it")
        for source in self.drafter:
            if source not in DRAFT_SOURCES:
                raise StartError(f"--drafter {source}: there is {', '.join(DRAFT_SOURCES)} or none")


def programs(settings: Settings) -> list[Program]:
    """Returns the services to run with their ports; raises StartError naming a port that is not to be had."""
    inner = iter(free_ports(2 * len(SERVICES)))
    grpc_ports = dict(zip(SERVICES, inner, strict=False))
    http_ports = dict(zip(SERVICES, inner, strict=False))
    if settings.grpc_port:
        grpc_ports["gateway"] = checked_port(settings.grpc_port, "--grpc-port")
    if settings.http_port:
        http_ports["gateway"] = checked_port(settings.http_port, "--http-port")
    drafter = f"{HOST}:{grpc_ports['drafter']}" if settings.drafter else ""
    own: dict[str, dict[str, str]] = {
        "worker": {"MODEL_DIR": str(settings.model)},
        "drafter": {},
        "scheduler": {"WORKER": f"{HOST}:{grpc_ports['worker']}", "DRAFTER": drafter},
        "gateway": {"MODEL_DIR": str(settings.model), "SCHEDULERS": f"{HOST}:{grpc_ports['scheduler']}"},
    }
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
            address=f"{HOST}:{grpc_ports[service]}",
        )
        for service in SERVICES
        if service != "drafter" or settings.drafter
    ]


def _prefixed(service: str, variables: Mapping[str, str]) -> dict[str, str]:
    return {f"OUTRIDER_{service.upper()}_{name}": value for name, value in variables.items()}


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


def free_ports(count: int) -> list[int]:
    """Returns distinct ports that nobody listens on.

    Drawn from below the range that systems take ports of outgoing connections from: one of those could come
    between the drawing and the service's start.
    """
    drawn = random.sample(range(*INNER_PORTS), 20 * count)
    return list(itertools.islice(filter(_is_free, drawn), count))


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def checked_port(port: int, option: str) -> int:
    """Returns `port`; raises StartError naming `option` if it is not to be had."""
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise StartError(f"{option} {port}: {reason}") from None
    return port
