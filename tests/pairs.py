"""Two pairs of scheduler and worker behind two gateways, each a process of its own that nobody watches."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from outrider.client import Client
from outrider.rpc.errors import Unavailable
from outrider.rpc.parent import die_with_parent
from outrider.v1 import gateway_pb2 as pb
from services.local.ports import free_ports

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "models" / "tiny")


class Service:
    """A process that can be ended in any way and started again at its address."""

    def __init__(self, name: str, port: int, **variables: str) -> None:
        prefix = f"OUTRIDER_{name.upper()}"
        listen = {"GRPC_PORT": str(port), "HTTP_PORT": "0"}
        self._name = name
        self._environment = {f"{prefix}_{key}": value for key, value in (listen | variables).items()}
        self.address = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        """Starts it; it serves in its own time."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"services.{self._name}"],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self._environment,
            stdout=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal and returns when the process is gone."""
        self.process.send_signal(number)
        self.process.wait()


class Pairs:
    """The processes, and what the gateways say of the pairs."""

    def __init__(self) -> None:
        ports = free_ports(6)
        self.workers = [
            Service("worker", port, MODEL_DIR=MODEL, NUM_THREADS="1", NUM_BLOCKS="400") for port in ports[:2]
        ]
        self.schedulers = [
            Service("scheduler", port, WORKER=worker.address, DRAIN_SECONDS="1")
            for port, worker in zip(ports[2:4], self.workers, strict=True)
        ]
        addresses = ",".join(scheduler.address for scheduler in self.schedulers)
        self.gateways = [
            Service("gateway", port, MODEL_DIR=MODEL, SCHEDULERS=addresses, DRAIN_SECONDS="0.2")
            for port in ports[4:]
        ]

    @property
    def targets(self) -> str:
        """Returns both gateways as a client's target."""
        return ",".join(gateway.address for gateway in self.gateways)

    def stats(self, gateway: int = 0) -> list[pb.SchedulerStats]:
        """Returns what a gateway knows of each pair."""
        with Client(self.gateways[gateway].address) as client:
            return client.stats()

    def until(self, condition: Callable[[list[pb.SchedulerStats]], bool], gateway: int = 0) -> None:
        """Returns when what a gateway knows of the pairs is as `condition` wants it."""
        while True:
            # A client of its own each time: a channel that has failed connects but every few seconds.
            with suppress(Unavailable), Client(self.gateways[gateway].address) as client:
                if condition(client.stats()):
                    return
            time.sleep(0.05)

    def until_all_take_requests(self) -> None:
        """Returns when each gateway can send requests to each pair."""
        for place in range(len(self.gateways)):
            self.until(lambda found: all(scheduler.takes_requests for scheduler in found), place)


@contextmanager
def running_pairs() -> Iterator[Pairs]:
    """Starts all processes, returns when they serve, and kills them at the end."""
    pairs = Pairs()
    try:
        pairs.until_all_take_requests()
        yield pairs
    finally:
        for service in (*pairs.gateways, *pairs.schedulers, *pairs.workers):
            service.end()
