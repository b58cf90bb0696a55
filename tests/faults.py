"""Faults of the network: a proxy that delays, throttles, swallows or resets what passes through it."""

import asyncio
import random
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

# Closing sends a reset and drops what was not sent.
_RESET = b"\x01\x00\x00\x00\x00\x00\x00\x00"
_MAX_BYTES = 16 * 1024


@dataclass(slots=True, eq=False)
class _Connection:
    """Both ends of what the proxy carries; one that swallows stays open and carries nothing."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    swallows: bool = False

    def reset(self) -> None:
        for end in (self.near, self.far):
            if end.is_closing():
                continue
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()


@dataclass(slots=True)
class _Pace:
    """How slowly bytes are carried."""

    most_delay_seconds: float = 0.0
    bytes_per_second: float = float("inf")
    rng: random.Random = field(default_factory=random.Random)

    async def hold_up(self, num_bytes: int) -> None:
        seconds = self.rng.uniform(0, self.most_delay_seconds) + num_bytes / self.bytes_per_second
        if seconds:
            await asyncio.sleep(seconds)


class Proxy:
    """Carries TCP connections to HOST:PORT, in a thread of its own. Enter it; `address` says where."""

    def __init__(self, target: str, *, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._pace = _Pace(rng=random.Random(seed))
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._port = 0
        # Connections that were reset or became half-open.
        self.num_lost = 0

    @property
    def address(self) -> str:
        """Where it listens, as HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    @property
    def carries(self) -> bool:
        """Whether there is a connection that is not half-open."""
        return not all(connection.swallows for connection in tuple(self._connections))

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self) -> None:
        """Resets every connection; new ones are carried."""
        self._run(self._reset())

    def swallow(self) -> None:
        """Makes every connection half-open: neither end hears of the other any more. New ones are carried."""
        self._run(self._swallow())

    def cut(self) -> None:
        """Resets every connection and refuses new ones until healed."""
        self._run(self._cut())

    def slow(self, *, most_delay_seconds: float, bytes_per_second: float) -> None:
        """Delays whatever passes by a random time, and throttles it, until healed."""
        self._pace.most_delay_seconds, self._pace.bytes_per_second = most_delay_seconds, bytes_per_second

    def heal(self) -> None:
        """Carries connections as if there were no proxy; what was swallowed is lost."""
        self.slow(most_delay_seconds=0.0, bytes_per_second=float("inf"))
        self._run(self._listen())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _reset(self) -> None:
        self.num_lost += len(self._connections)
        for connection in self._connections:
            connection.reset()

    async def _swallow(self) -> None:
        self.num_lost += len(self._connections)
        for connection in self._connections:
            connection.swallows = True

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset()

    async def _stop(self) -> None:
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
        except OSError:
            near.transport.abort()
            return
        connection = _Connection(near, far)
        if self._server is None:
            connection.reset()
            return
        self._connections.add(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await asyncio.gather(
                self._carry(connection, near_reader, far), self._carry(connection, far_reader, near)
            )
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)

    async def _carry(
        self, connection: _Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Carries one direction. The end of a connection that swallows is swallowed, too."""
        with suppress(OSError):
            while data := await source.read(_MAX_BYTES):
                await self._pace.hold_up(len(data))
                if not connection.swallows:
                    sink.write(data)
                    await sink.drain()
        if not connection.swallows:
            sink.close()
