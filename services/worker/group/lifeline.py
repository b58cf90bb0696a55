"""Connections between rank 0 and the others, by which all learn at once that one has ended or is stopped.

A process that ends closes its connection. One that is stopped sends no beats: whoever misses them kills it
where it can, for torchrun does not notice. Then the rank ends too, and the agent starts all of them again.
"""

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

# Of the limit: how many beats it has.
BEATS_PER_LIMIT = 10
# A process that loads a model or compiles kernels may keep its threads from running for longer.
LOADING_FACTOR = 10
# What beats say of their sender.
LOADING, SERVING, ENDING = b"l", b"s", b"e"

OnLost = Callable[[str], None]

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a process is, as far as another needs it to kill it."""

    rank: int
    pid: int
    # What its process id is good in: a machine since its start, and a container.
    machine: str

    @classmethod
    def own(cls, rank: int) -> "Identity":
        """Returns this process's."""
        return cls(rank=rank, pid=os.getpid(), machine=_machine())


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


class Peer:
    """The process at the other end of a connection."""

    def __init__(self, identity: Identity, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.identity = identity
        self.connection = connection
        self.is_serving = False
        self.is_ending = False
        self.num_missed = 0

    def beat(self, kind: bytes) -> None:
        """Sends a sign of life; one more does not matter to a peer that has not read the others."""
        # That the other end is closed, hearing says.
        with contextlib.suppress(OSError):
            self.connection.send(kind)

    def hear(self) -> bool:
        """Takes in what has come; returns False if the other end is closed."""
        try:
            beats = self.connection.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.num_missed = 0
        self.is_serving |= SERVING in beats
        self.is_ending |= ENDING in beats
        return bool(beats)

    def kill(self) -> None:
        """Kills the process if it runs on this machine: once stopped, it would never end by itself."""
        own = Identity.own(0)
        if self.identity.machine == own.machine and self.identity.pid != own.pid:
            try:
                os.kill(self.identity.pid, signal.SIGKILL)
            except OSError as error:
                log.warning("peer_not_killed", rank=self.identity.rank, reason=error.strerror)


class Lifeline:
    """Watches the peers in a thread of its own, from `start` to `stop`."""

    def __init__(self, peers: list[Peer], *, limit_seconds: float, on_lost: OnLost) -> None:
        """`on_lost` is called in the thread, once, with what has happened; the process is to end then."""
        self._peers = peers
        self._beat_seconds = limit_seconds / BEATS_PER_LIMIT
        self._on_lost = on_lost
        self._kind = LOADING
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)

    def start(self) -> None:
        """Begins to send beats and to watch."""
        self._thread.start()

    def serve(self, *, with_peers: bool = False) -> None:
        """Says that the model is loaded, here or everywhere: then beats come in time, or it is stopped."""
        self._kind = SERVING
        for peer in self._peers:
            peer.is_serving |= with_peers

    def stop(self) -> None:
        """Ends the watch, and says so to the peers: the group ends as it is meant to."""
        self._stopped.set()
        self._thread.join()
        for peer in self._peers:
            peer.beat(ENDING)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while not self._stopped.is_set():
                lost = self._watch(selector) or self._miss()
                if lost and not self._stopped.is_set():
                    self._on_lost(lost)
                    return

    def _watch(self, selector: selectors.BaseSelector) -> str | None:
        """Sends a beat, and listens until the next is due; returns who has ended, if one has."""
        for peer in self._peers:
            peer.beat(self._kind)
        due = time.monotonic() + self._beat_seconds
        while (left := due - time.monotonic()) > 0 and not self._stopped.is_set():
            for key, _ in selector.select(left):
                peer: Peer = key.data
                if not peer.hear():
                    selector.unregister(peer.connection)
                    if not peer.is_ending:
                        return f"rank {peer.identity.rank} has ended"
        return None

    def _miss(self) -> str | None:
        """Counts what did not come in the time of a beat; returns who is stopped, if one is.

        It counts our own beats, not the time: when we are held up ourselves, no peer is to blame.
        """
        for peer in self._peers:
            peer.num_missed += 1
            limit = BEATS_PER_LIMIT * (1 if peer.is_serving else LOADING_FACTOR)
            if peer.num_missed > limit and not peer.is_ending:
                peer.kill()
                return f"rank {peer.identity.rank} gives no sign of life"
        return None
