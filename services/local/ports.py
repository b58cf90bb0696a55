"""The ports that the local stack listens on."""

import itertools
import os
import random
import socket

from services.local.child import StartError

HOST = "127.0.0.1"
INNER_PORTS = (20_000, 32_768)


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
