"""Reads numbers from a state that may be anything."""

import math
from collections.abc import Mapping
from typing import Any


def number(state: Mapping[str, Any], name: str, *, least: float = -1e12, most: float = 1e12) -> float:
    """Returns a finite number within bounds; raises ValueError naming it."""
    value = state.get(name) if isinstance(state, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.50}, not a number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value:g}, not from {least:g} to {most:g}")
    return float(value)


def numbers(
    state: Mapping[str, Any], name: str, count: int, *, least: float = -1e12, most: float = 1e12
) -> list[float]:
    """Returns so many finite numbers within bounds; raises ValueError naming them."""
    values = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{name} is not a list of {count} numbers")
    return [number({name: value}, name, least=least, most=most) for value in values]


def table(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a mapping; raises ValueError naming it."""
    value = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is not a table")
    return value
