"""How the ranks come by their lifelines: rank 0 listens, the others call it and say who they are."""

import json
import secrets
import selectors
import socket
import time
from dataclasses import asdict
from typing import cast

from torch._C._distributed_c10d import Store

from services.worker.group.lifeline import Identity, Peer

KEY = "lifeline"
TIMEOUT_SECONDS = 60.0
MAX_LINE_BYTES = 4096


def receive_peers(store: Store, num_ranks: int, host: str, *, listen_on: str) -> list[Peer]:
    """Waits, as rank 0, until each other rank has called `host`. Raises OSError if one does not in time."""
    word = secrets.token_hex(16)
    with socket.create_server((listen_on, 0), family=socket.AF_INET) as listener:
        place = {"host": host, "port": listener.getsockname()[1], "word": word}
        store.set(KEY, json.dumps(place | asdict(Identity.own(0))))
        return _received(listener, word, num_ranks)


def _received(listener: socket.socket, word: str, num_ranks: int) -> list[Peer]:
    """Hears all who call at once, so that a stranger holds up nobody."""
    peers: dict[int, Peer] = {}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while missing := set(range(1, num_ranks)) - peers.keys():
            ready = selector.select(deadline - time.monotonic()) if time.monotonic() < deadline else []
            if not ready:
                raise TimeoutError(f"ranks {sorted(missing)} have not called")
            for key, _ in ready:
                if key.data is None:
                    selector.register(listener.accept()[0], selectors.EVENT_READ, bytearray())
                elif _is_said(connection := cast(socket.socket, key.fileobj), key.data):
                    selector.unregister(connection)
                    peer = _identified(connection, key.data, word)
                    if peer is not None and peer.identity.rank in missing - peers.keys():
                        peers[peer.identity.rank] = peer
                    else:
                        connection.close()
        for key in selector.get_map().values():
            if key.data is not None:
                cast(socket.socket, key.fileobj).close()
    return list(peers.values())


def _is_said(connection: socket.socket, line: bytearray) -> bool:
    """Takes in one byte, for what follows the line is a beat; says whether it was the last."""
    try:
        said = connection.recv(1)
    except OSError:
        return True
    line += said
    return said in (b"", b"\n") or len(line) >= MAX_LINE_BYTES


def _identified(connection: socket.socket, line: bytes, word: str) -> Peer | None:
    """Returns who has called; None for a stranger, who does not know the word."""
    try:
        said = json.loads(line)
        if secrets.compare_digest(said.pop("word"), word):
            return Peer(Identity(**said), connection)
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return None


def call_leader(store: Store, rank: int) -> Peer:
    """Calls rank 0. Raises OSError if it is not there."""
    told = json.loads(store.get(KEY))
    connection = socket.create_connection((told.pop("host"), told.pop("port")), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    introduction = {"word": told.pop("word"), **asdict(Identity.own(rank))}
    connection.sendall(json.dumps(introduction).encode() + b"\n")
    return Peer(Identity(**told), connection)
