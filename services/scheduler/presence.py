"""Whether there is a group: all is kept for a while after it is lost, as it may be re-forming."""

import asyncio
from collections.abc import Callable

from outrider.rpc.errors import Unavailable


class GroupPresence:
    """Follows the group's comings and goings; says SERVING at once and NOT_SERVING only with patience."""

    def __init__(self, *, patience_seconds: float, set_serving: Callable[[bool], None]) -> None:
        self._patience_seconds = patience_seconds
        self._set_serving = set_serving
        self._present = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.is_serving = False

    @property
    def is_present(self) -> bool:
        """Whether there is a group now."""
        return self._present.is_set()

    def found(self) -> None:
        """Notes that a session is open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._present.set()
        self._serve(True)

    def lost(self) -> None:
        """Notes that the stream broke."""
        self._present.clear()
        if self.is_serving and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience_seconds, self._serve, False)

    async def wait(self) -> None:
        """Returns when there is a group; raises Unavailable after the patience."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._present.wait()
        except TimeoutError:
            raise Unavailable("there is no group of workers") from None

    def _serve(self, serving: bool) -> None:
        self.is_serving = serving
        self._set_serving(serving)
