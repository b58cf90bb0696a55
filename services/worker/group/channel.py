"""The broadcast from rank 0 to the others, over the processors' network."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from services.worker import metrics
from services.worker.group.messages import Message, decode, encode
from services.worker.lost import GroupLost

FIRST_SIZE = 4096
"""Numbers of the part that is always sent; the first is how many there are. As a rule a step fits."""


class Channel:
    """Carries one message at a time from rank 0; who receives sleeps until there is one, however long."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._first = torch.zeros(FIRST_SIZE, dtype=torch.int32)

    def send(self, message: Message) -> None:
        """Gives a message to every other rank. Raises GroupLost."""
        numbers = torch.from_numpy(encode(message))
        first, rest = numbers[: FIRST_SIZE - 1], numbers[FIRST_SIZE - 1 :]
        self._first[0] = len(numbers)
        self._first[1 : 1 + len(first)] = first
        with metrics.broadcast_seconds.time():
            self._broadcast(self._first)
            if len(rest):
                self._broadcast(rest)

    def receive(self) -> Message:
        """Waits for the next message. Raises GroupLost."""
        self._broadcast(self._first)
        count = int(self._first[0])
        numbers = self._first[1 : 1 + count]
        if count >= FIRST_SIZE:
            rest = torch.empty(count - (FIRST_SIZE - 1), dtype=torch.int32)
            self._broadcast(rest)
            numbers = torch.cat([numbers, rest])
        return decode(np.asarray(numbers))

    def _broadcast(self, numbers: torch.Tensor) -> None:
        with losing_the_group():
            dist.broadcast(numbers, src=0, group=self._group)


@contextmanager
def losing_the_group() -> Iterator[None]:
    """Makes what an exchange raises GroupLost: all ranks do the same, so only a lost peer is a reason."""
    try:
        yield
    except RuntimeError as error:
        raise GroupLost(f"the group is lost: {str(error).partition(chr(10))[0]}") from error
