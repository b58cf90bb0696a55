"""Places for what is in flight, shared among tenants."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from outrider.rpc.errors import ResourceExhausted


class Places:
    """A bounded number of places, of which no tenant can take so many that the others find none.

    Where there are several tenants one alone may hold three quarters, and half while others hold any.
    """

    def __init__(self, max_num: int, *, noun: str, num_tenants: int) -> None:
        self._max_num = max_num
        self._noun = noun
        self._num_tenants = num_tenants
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        """Holds a place; raises ResourceExhausted if there is none."""
        if self._taken.total() >= self._max_num:
            raise ResourceExhausted(f"too many {self._noun}", retry_delay=timedelta(seconds=1))
        if self._taken[tenant] >= self._share(tenant):
            raise ResourceExhausted(
                f"too many {self._noun} of tenant {tenant}", retry_delay=timedelta(seconds=1)
            )
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1

    def _share(self, tenant: str) -> int:
        if self._num_tenants == 1:
            return self._max_num
        quarters = 2 if self._taken.total() > self._taken[tenant] else 3
        return max(1, self._max_num * quarters // 4)
