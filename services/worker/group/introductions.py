"""How the ranks come by their lifelines: rank 0 listens, the others call it and say who they are."""

import json
import secrets
import socket
from dataclasses import asdict

from torch._C._distributed_c10d import Store

from services.worker.group.lifeline import Identity, Peer

KEY = "lifeline"
TIMEOUT_SECONDS = 60.0
INTRODUCTION_SECONDS = 5.0
MAX_LINE_BYTES = 4096


def receive_peers(store: Store, num_ranks: int, host: str) -> list[Peer]:
    """Waits, as rank 0, until each other rank has called. Raises OSError if one does not in time."""
    word = secrets.token_hex(16)
    with socket.create_server(("", 0), family=socket.AF_INET) as listener:
        place = {"host": host, "port": listener.getsockname()[1], "word": word}
        store.set(KEY, json.dumps(place | asdict(Identity.own(0))))
        listener.settimeout(TIMEOUT_SECONDS)
        peers: list[Peer] = []
        while len(peers) < num_ranks - 1:
            connection, _ = listener.accept()
            peer = _received(connection, word)
            if peer is not None:
                peers.append(peer)
    return peers


def _received(connection: socket.socket, word: str) -> Peer | None:
    """Hears who calls; None for a stranger, who does not know the word."""
    connection.settimeout(INTRODUCTION_SECONDS)
    try:
        said = json.loads(_line(connection))
        if secrets.compare_digest(said.pop("word"), word):
            return Peer(Identity(**said), connection)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    connection.close()
    return None


def _line(connection: socket.socket) -> bytes:
    line = b""
    # One at a time: what follows is a beat.
    while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
        line += connection.recv(1) or b"\n"
    return line


def call_leader(store: Store, rank: int) -> Peer:
    """Calls rank 0. Raises OSError if it is not there."""
    told = json.loads(store.get(KEY))
    connection = socket.create_connection((told.pop("host"), told.pop("port")), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    introduction = {"word": told.pop("word"), **asdict(Identity.own(rank))}
    connection.sendall(json.dumps(introduction).encode() + b"\n")
    return Peer(Identity(**told), connection)
