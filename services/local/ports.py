"""The ports that the local stack listens on."""

import os
import random
import socket

from services.local.child import StartError

HOST = "127.0.0.1"
INNER_PORTS = (20_000, 32_768)
# A rank listens so far behind the one before it.
RANK_STEP = 10


def free_ports(count: int, *, num_ranks: int = 1) -> list[int]:
    """Returns ports that nobody listens on, nor on those of the further ranks behind each; all distinct.

    Drawn from below the range that systems take ports of outgoing connections from: one of those could come
    between the drawing and the service's start. Raises StartError if there are not so many.
    """
    found: list[int] = []
    taken: set[int] = set()
    first, end = INNER_PORTS
    possible = range(first, end - RANK_STEP * (num_ranks - 1))
    for port in random.sample(possible, len(possible)):
        wanted = range(port, port + RANK_STEP * num_ranks, RANK_STEP)
        if taken.isdisjoint(wanted) and all(map(_is_free, wanted)):
            found.append(port)
            taken.update(wanted)
        if len(found) == count:
            return found
    raise StartError(f"--ranks {num_ranks}: there are no free ports for so many")


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def checked_port(port: int, option: str) -> int:
    """Returns `port`, 0 as it is; raises StartError naming `option` if it is not to be had."""
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise StartError(f"{option} {port}: {reason}") from None
    return port
