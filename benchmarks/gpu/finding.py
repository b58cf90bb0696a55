"""What a part finds, and how it is printed."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure; with a target it is one that was reached or missed."""

    part: str
    name: str
    value: float
    unit: str
    target: str = ""
    is_reached: bool | None = None

    @classmethod
    def at_most(cls, part: str, name: str, value: float, unit: str, limit: float) -> Self:
        """A figure that must not be above its limit."""
        return cls(
            part=part, name=name, value=value, unit=unit, target=f"<= {limit:g}", is_reached=value <= limit
        )

    @classmethod
    def at_least(cls, part: str, name: str, value: float, unit: str, limit: float) -> Self:
        """A figure that must not be below its limit."""
        return cls(
            part=part, name=name, value=value, unit=unit, target=f">= {limit:g}", is_reached=value >= limit
        )

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Reads what `line` wrote."""
        return cls(**json.loads(line))

    @property
    def line(self) -> str:
        """The finding as one line of JSON."""
        return json.dumps(self.as_row())

    def as_row(self) -> dict[str, Any]:
        """Returns the finding as a row of a result."""
        return asdict(self)

    @property
    def verdict(self) -> str:
        """PASS or MISS; empty without a target."""
        return {True: "PASS", False: "MISS", None: ""}[self.is_reached]


def table(findings: Iterable[Finding]) -> str:
    """Returns findings as a table for a terminal."""
    rows: Sequence[Sequence[str]] = [
        ("part", "what", "value", "unit", "target", ""),
        *((f.part, f.name, f"{f.value:.4g}", f.unit, f.target, f.verdict) for f in findings),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
