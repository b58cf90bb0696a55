"""What a service has written, and what its latest line says."""

import json
from pathlib import Path


class Log:
    """The file that a service writes to. Without a path it writes to our stderr."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @property
    def reason(self) -> str:
        """The process's own last word, which for a wrong setting names it."""
        return f"{self.last_event} (log: {self.path})" if self.path else "its messages are above"

    @property
    def last_event(self) -> str:
        """The latest line; of a JSON line, the event and what an exception says."""
        record = _record(line := self._last_line())
        if "event" not in record:
            return line
        return ": ".join([record["event"], *record.get("exception", "").strip().splitlines()[-1:]])

    @property
    def is_failing(self) -> bool:
        """Whether the latest line says why the process ends, which its supervisor will report."""
        line = self._last_line()
        # Of `outrider worker: OUTRIDER_WORKER_X: no` a JSON line has nothing.
        return line.startswith("outrider ") or _record(line).get("level") == "critical"

    def _last_line(self) -> str:
        if self.path is None or not self.path.exists():
            return ""
        lines = self.path.read_text(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _record(line: str) -> dict[str, str]:
    """Returns what a line of JSON says; nothing for another line."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
