"""One service as a process of its own, wired by hand."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[1]
MODEL_DIR = ROOT / "models" / "tiny"


class ServiceProcess:
    """Enter it to start the service; its ports stay the same when it is killed and started again."""

    def __init__(self, service: str, **settings: object) -> None:
        """`settings` are those of its configuration, by their names there."""
        self._service = service
        with ExitStack() as sockets:
            listeners = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            grpc_port, self._http_port = (listener.getsockname()[1] for listener in listeners)
        self.address = f"127.0.0.1:{grpc_port}"
        settings = {"grpc_port": grpc_port, "http_port": self._http_port} | settings
        prefix = f"OUTRIDER_{service.upper()}"
        self._environ = {f"{prefix}_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the process, which dies with the tests'."""
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "services.local.launch",
                f"services.{self._service}", str(os.getpid()),
            ],
            cwd=ROOT, env=os.environ | self._environ,
        )  # fmt: skip

    def kill(self) -> None:
        """Kills it as the kernel would."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Asks it to end, as an operator does."""
        self.process.send_signal(signal.SIGTERM)

    def wait_until_serving(self) -> None:
        """Returns when its health says so; the test's own limit ends the wait."""
        while self.get("/healthz") is None:
            assert self.process.poll() is None, f"the {self._service} ended"
            time.sleep(0.05)

    def metric(self, name: str) -> float:
        """Returns the value of a metric without labels, as Prometheus would see it."""
        lines = (self.get("/metrics") or "").splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def get(self, path: str) -> str | None:
        """Returns what a path of its HTTP side answers; None if it is no good."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.read().decode() if response.status == http.client.OK else None
            except (OSError, http.client.HTTPException):
                return None
