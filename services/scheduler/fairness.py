"""Fairness between tenants: who waits, and who was served how much.

A virtual token counter per tenant (Sheng and others, Fairness in Serving Large Language Models, OSDI 2024,
arXiv 2401.00588): the tenant served least goes first; one that comes back from idleness starts at the minimum
of the active ones, so that idleness saves nothing up.

The paper's bound rests on short sequences: while one tenant's long ones hold all places or blocks, another
waits. So running sequences of a tenant that is ahead by more than a chunk make way (`ahead_of`), and such a
preemption costs no more rows, were all to be computed again, than were served since the one before.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from services.scheduler.sequence import Sequence

# So many times the distance is allowed to a tenant that runs no more sequences than the one behind it.
PATIENCE = 8


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return (-sequence.priority, sequence.id)


@dataclass(slots=True)
class Tenant:
    """One tenant's account: tokens served by its weight, and its waiting sequences, most urgent first."""

    weight: float = 1.0
    served: float = 0.0
    num_sequences: int = 0
    waiting: list[Sequence] = field(default_factory=list)
    num_waiting_tokens: int = 0


class Tenants:
    """All tenants that have sequences, and idle ones that were served more than those."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self.num_waiting = 0
        self.num_waiting_tokens = 0

    def enter(self, sequence: Sequence) -> None:
        """Opens the account of a new sequence's tenant, or goes on with it."""
        tenant = self._tenants.setdefault(sequence.tenant, Tenant())
        tenant.weight = sequence.tenant_weight
        if not tenant.num_sequences:
            tenant.served = max(tenant.served, self._least_served())
        tenant.num_sequences += 1

    def leave(self, sequence: Sequence) -> None:
        """Closes a sequence's part of the account; forgets idle tenants that are not ahead of the others."""
        tenant = self._tenants[sequence.tenant]
        tenant.num_sequences -= 1
        if not tenant.num_sequences:
            least = self._least_served()
            active = any(other.num_sequences for other in self._tenants.values())
            self._tenants = {
                name: other
                for name, other in self._tenants.items()
                if other.num_sequences or (active and other.served > least)
            }

    def add(self, sequence: Sequence) -> None:
        """Lets a sequence wait among its tenant's."""
        tenant = self._tenants[sequence.tenant]
        insort(tenant.waiting, sequence, key=_urgency)
        self._count(tenant, sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out of its tenant's waiting ones."""
        tenant = self._tenants[sequence.tenant]
        index = bisect_left(tenant.waiting, _urgency(sequence), key=_urgency)
        assert tenant.waiting[index] is sequence
        del tenant.waiting[index]
        self._count(tenant, sequence, -1)

    def first(self) -> Sequence | None:
        """Returns the most urgent waiting sequence of the tenant served least."""
        tenants = [tenant for tenant in self._tenants.values() if tenant.waiting]
        return min(tenants, key=lambda tenant: tenant.served).waiting[0] if tenants else None

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Adds tokens to the account of a sequence's tenant."""
        tenant = self._tenants[sequence.tenant]
        tenant.served += num_tokens / tenant.weight

    def rank(self, sequence: Sequence) -> tuple[float, int, int]:
        """Orders running sequences: the last one is the first to be preempted."""
        return (self._tenants[sequence.tenant].served, -sequence.priority, sequence.id)

    def served(self, tenant: str) -> float:
        """Returns a tenant's counter; 0 for one without an account."""
        return self.account(tenant).served

    def account(self, tenant: str) -> Tenant:
        """Returns a tenant's account, an empty one for a tenant that has none."""
        return self._tenants[tenant] if tenant in self._tenants else Tenant()

    def share_of(self, sequence: Sequence) -> float:
        """Returns the share, by weight, of the sequence's tenant among those that have sequences."""
        weights = [
            tenant.weight
            for name, tenant in self._tenants.items()
            if tenant.num_sequences and name != sequence.tenant
        ]
        return sequence.tenant_weight / (sequence.tenant_weight + sum(weights))

    def ahead_of(self, sequence: Sequence, running: Collection[Sequence], num_tokens: int) -> list[Sequence]:
        """Returns the running sequences of tenants served more than this one's by so much, the last first.

        One that runs no more of them than this sequence's tenant, by weight, may be further ahead: with as
        many the distance hardly grows, and with fewer it goes by itself.
        """
        places: defaultdict[str, float] = defaultdict(float)
        for other in running:
            places[other.tenant] += 1 / self._tenants[other.tenant].weight
        own, served = places[sequence.tenant], self.served(sequence.tenant)
        limits = {name: num_tokens if num > own else PATIENCE * num_tokens for name, num in places.items()}
        ahead = [
            other for other in running if self._tenants[other.tenant].served - served > limits[other.tenant]
        ]
        return sorted(ahead, key=self.rank, reverse=True)

    def waiting(self) -> Iterator[Sequence]:
        """Yields every waiting sequence."""
        for tenant in self._tenants.values():
            yield from tenant.waiting

    def check(self) -> None:
        """Raises AssertionError unless the counts agree with the sequences."""
        assert self.num_waiting == sum(1 for _ in self.waiting())
        assert self.num_waiting_tokens == sum(sequence.num_tokens for sequence in self.waiting())
        for tenant in self._tenants.values():
            assert tenant.waiting == sorted(tenant.waiting, key=_urgency)
            assert tenant.num_sequences >= len(tenant.waiting)

    def _least_served(self) -> float:
        return min((tenant.served for tenant in self._tenants.values() if tenant.num_sequences), default=0.0)

    def _count(self, tenant: Tenant, sequence: Sequence, sign: int) -> None:
        tenant.num_waiting_tokens += sign * sequence.num_tokens
        self.num_waiting_tokens += sign * sequence.num_tokens
        self.num_waiting += sign
