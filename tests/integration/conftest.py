"""What the tests of whole stacks share."""

from collections.abc import Iterator

import pytest

from tests.stack import RunningStack, running_stack, wait_until_gone


@pytest.fixture(scope="session")
def stack() -> Iterator[RunningStack]:
    """Runs for all tests that ask for it, and is stopped as an operating system stops it: nothing is left."""
    with running_stack() as running:
        yield running
        processes = running.pids()
        running.process.terminate()
        assert running.process.wait(60) == 0
        wait_until_gone(processes)
