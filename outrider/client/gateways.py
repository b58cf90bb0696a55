"""The gateways that a client may ask: one of them until it fails, then the next."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What gRPC itself takes for the beginning of a name; it may hold commas.
_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")


@dataclass(frozen=True, kw_only=True, eq=False)
class Gateway:
    """A way to one gateway, or to several that gRPC chooses from; `stub` has its methods."""

    target: str
    channel: Any
    stub: Any


class Gateways:
    """Stays with one gateway, which knows where the blocks of earlier turns are, until it fails."""

    def __init__(self, targets: str, connect: Callable[[str], Any], stub: Callable[[Any], Any]) -> None:
        """Begins with any of those that `targets` names, so that many clients with one list share them."""
        names = [targets] if _SCHEME.match(targets) else [name.strip() for name in targets.split(",")]
        channels = [(name, connect(name)) for name in names if name]
        self.all = [Gateway(target=name, channel=channel, stub=stub(channel)) for name, channel in channels]
        if not self.all:
            raise ValueError("the target must name a gateway as HOST:PORT")
        self._place = random.randrange(len(self.all))

    @property
    def current(self) -> Gateway:
        """Returns the one that is asked now."""
        return self.all[self._place]

    def leave(self, gateway: Gateway) -> None:
        """Asks the next one from now on, unless another caller has gone on already."""
        if gateway is self.current:
            self._place = (self._place + 1) % len(self.all)
