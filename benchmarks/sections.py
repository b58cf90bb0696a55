"""What the report on speculation says: its words, and what the figures make of them."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "sections.toml"
MAX_NUM_COLUMNS = 6
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report, made of one result."""

    name: str
    title: str
    text: str

    def verdict(self, rows: Rows) -> str:
        """Returns what the figures say of the targets; empty where there is nothing to conclude."""
        return VERDICTS[self.name](rows) if self.name in VERDICTS else ""

    def table(self, rows: Rows) -> str:
        """Returns the figures."""
        return TABLES.get(self.name, markdown)(rows)


def read() -> tuple[str, list[Section]]:
    """Returns the beginning of the report and its sections."""
    words = tomllib.loads(PATH.read_text())
    return words["head"].strip(), [Section(**section) for section in words["sections"]]


def markdown(rows: Rows, columns: Mapping[str, str] | None = None) -> str:
    """Returns rows as a table; `columns` picks and names them. A single row of many is turned on its side."""
    if columns is None and len(rows) == 1 and len(rows[0]) > MAX_NUM_COLUMNS:
        rows = [{"figure": name.replace("_", " "), "value": value} for name, value in rows[0].items()]
    columns = columns or {name: name.replace("_", " ") for name in rows[0]}
    lines = [list(columns.values()), ["---"] * len(columns)]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list() | tuple():
            return " ".join(_cell(item) for item in value)
        case dict():
            return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
        case None:
            return ""
    return str(value)


def _with_intervals(rows: Rows, *names: str) -> list[dict[str, Any]]:
    """Writes intervals as `median (low to high)`."""
    return [{**row, **{name: _interval(row[name]) for name in names}} for row in rows]


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def _cells(rows: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['kind']} at {row['num_streams']}" for row in rows)


def _never_costs_verdict(rows: Rows) -> str:
    failing = [row for row in rows if row["fails"]]
    wide = [row for row in rows if row["is_wide"]]
    best = max(rows, key=lambda row: row["median"])
    said = [
        f"Cells that fail: {_cells(failing)}." if failing else f"None of {len(rows)} cells fails.",
        f"Best cell: {_cells([best])} streams, {best['median']:.2f} times.",
    ]
    if wide:
        said.append(
            f"Intervals wider than 3 % to a side, pairs enough for less not fitting the time: {_cells(wide)}."
        )
    return " ".join(said)


def _never_costs_table(rows: Rows) -> str:
    shown = [{**row, "ratio": f"{row['median']:.3f} ({row['low']:.3f} to {row['high']:.3f})"} for row in rows]
    columns = {
        "kind": "text",
        "num_streams": "streams",
        "num_pairs": "pairs",
        "ratio": "ratio",
        "half_width": "half width",
        "with_drafts": "tokens/s with",
        "without": "without",
        "tokens_per_event": "tokens per step with",
    }
    return markdown(shown, columns)


def _regret_verdict(rows: Rows) -> str:
    worst = min(rows, key=lambda row: row["ratio_to_best_fixed"])
    mixed = [row for row in rows if "turn" in row["kind"]]
    short = [row for row in rows if row["ratio_to_best_fixed"] < 0.95]
    said = [
        f"Worst cell: {_cells([worst])}, {worst['ratio_to_best_fixed']:.3f} of the best fixed length.",
        f"Below 0.95: {_cells(short)}." if short else "No cell is below 0.95.",
    ]
    if mixed:
        behind = [row for row in mixed if row["ratio_to_best_fixed"] < 1]
        said.append(
            f"Where the kind changes it is behind the best fixed length at {_cells(behind)}."
            if behind
            else "Where the kind changes it is ahead of every fixed length."
        )
    return " ".join(said)


def _regret_table(rows: Rows) -> str:
    columns = {
        "kind": "text",
        "num_streams": "streams",
        "tokens_per_second": "tokens/s",
        "fixed_tokens_per_second": "with 0 to 8 fixed",
        "best_fixed_length": "best fixed",
        "ratio_to_best_fixed": "by the best fixed",
        "learnt_ratio_to_best_fixed": "and again",
        "ratio_to_none": "by none",
    }
    return markdown(rows, columns)


def _learns_verdict(rows: Rows) -> str:
    by_pass = {row["pass"]: row for row in rows}
    second, third, first = (by_pass[name] for name in ("second", "third, restarted", "first"))
    return (
        f"The second pass runs at {second['to_first']['median']:.2f} times the rate of the first, the third, "
        f"after the restart, at {third['to_first']['median']:.2f}. By the rate without drafts: the first "
        f"{first['to_without']['median']:.2f}, the second {second['to_without']['median']:.2f} times."
    )


def _learns_table(rows: Rows) -> str:
    columns = {
        "pass": "pass",
        "num_conversations": "conversations",
        "tokens_per_second": "tokens/s",
        "accepted_per_step": "accepted per step",
        "to_first": "by the first pass",
        "to_without": "by no drafts",
    }
    return markdown(_with_intervals(rows, "to_first", "to_without"), columns)


# Sections without an entry have a plain table, and nothing to conclude.
VERDICTS: Mapping[str, Callable[[Rows], str]] = {
    "never_costs": _never_costs_verdict,
    "never_costs_suffix": _never_costs_verdict,
    "learns": _learns_verdict,
    "regret": _regret_verdict,
}
TABLES: Mapping[str, Callable[[Rows], str]] = {
    "never_costs": _never_costs_table,
    "never_costs_suffix": _never_costs_table,
    "learns": _learns_table,
    "regret": _regret_table,
    "caps": lambda rows: markdown(_with_intervals(rows, "uncapped_to_capped")),
}
