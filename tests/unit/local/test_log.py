"""What a supervised process says, read from its log."""

import json
from pathlib import Path

import pytest

from services.local.log import Log

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
    path = tmp_path / "worker.log"
    path.write_text(lines)
    log = Log(path)
    assert (log.last_event, log.is_failing) == (event, is_failing)
