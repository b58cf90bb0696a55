"""Typed access to the fields of a config.json, with errors that name the file and the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.model.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Fields:
    """One JSON object of a config file."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(self.path, self.prefix + name, problem)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"{value!r} is not an integer of at least {minimum}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(name, f"{value!r} is not a number above zero")
        return float(value)

    def number_or_zero(self, name: str) -> float:
        """As `number`; an absent field is zero, and zero is zero."""
        return self.number(name) if self.values.get(name) not in (None, 0) else 0.0

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{value!r} is neither true nor false")
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"{value!r} is not a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, or nothing."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(name, f"{value!r} is not a list of strings")
        return tuple(value)

    def section(self, name: str) -> "Fields":
        value = self._value(name, None)
        if not isinstance(value, Mapping):
            raise self.error(name, "is not an object")
        return Fields(path=self.path, values=value, prefix=f"{self.prefix}{name}.")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing."""
        value = self.values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise self.error(name, f"{value!r} is neither a token id nor a list of token ids")
        return tuple(ids)

    def must_be(self, name: str, supported: object) -> None:
        """Refuse any other value than the supported one; an absent field is taken to mean it."""
        if self.has(name) and self.values[name] != supported:
            raise self.error(name, f"{self.values[name]!r} is not supported, only {supported!r}")

    def must_state(self, name: str, supported: object) -> None:
        """Refuse any other value than the supported one, and an absent field too."""
        self._value(name, None)
        self.must_be(name, supported)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value
