"""What a supervised process says, read from its log."""

import json
from pathlib import Path

import pytest

from services.local.child import Child, Program

PROGRAM = Program(service="worker", environment={}, address="127.0.0.1:1", http_url="http://127.0.0.1:1")
CRITICAL = {"event": "service_failed", "level": "critical", "exception": "Traceback\nValueError: no"}


@pytest.mark.parametrize(
    ("lines", "event", "is_failing"),
    [
        ("", "", False),
        ('{"event": "loading", "level": "info"}\n', "loading", False),
        ('{"event": "loading"}\n\rweights 10 %\rweights 20 %', "weights 20 %", False),
        ("[1, 2]\n", "[1, 2]", False),
        ("outrider worker: OUTRIDER_WORKER_X: no\n", "outrider worker: OUTRIDER_WORKER_X: no", True),
        (json.dumps(CRITICAL), "service_failed: ValueError: no", True),
    ],
)
def test_the_last_line_is_what_it_does_or_why_it_ends(
    tmp_path: Path, lines: str, event: str, is_failing: bool
) -> None:
    log = tmp_path / "worker.log"
    log.write_text(lines)
    child = Child(PROGRAM, log_path=log, report=lambda line: None)
    assert (child.last_event(), child.is_failing) == (event, is_failing)
