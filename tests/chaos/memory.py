"""The memory of a stack's processes, watched while they come and go."""

import asyncio
from dataclasses import dataclass, field

from benchmarks.processes import services_of

SAMPLE_SECONDS = 0.5
# A process that has just begun serves other requests than the one before it did.
SLACK_BYTES = 48 << 20
SLACK = 1.15


@dataclass(slots=True)
class Peaks:
    """The most memory of its own that any process of a name had."""

    num_bytes: dict[str, int] = field(default_factory=dict)

    async def watch(self, stack_pid: int) -> None:
        """Samples until cancelled."""
        while True:
            for name, process in services_of(stack_pid).items():
                self.num_bytes[name] = max(self.num_bytes.get(name, 0), process.own_bytes)
            await asyncio.sleep(SAMPLE_SECONDS)

    def grown_since(self, earlier: "Peaks") -> dict[str, tuple[int, int]]:
        """Returns the names whose peak passes the one before by more than the slack, with both."""
        return {
            name: (before, after)
            for name, after in self.num_bytes.items()
            if after > SLACK * (before := earlier.num_bytes.get(name, 0)) + SLACK_BYTES
        }
