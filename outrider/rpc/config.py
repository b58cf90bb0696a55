"""Configuration from environment variables: one frozen dataclass per service."""

import dataclasses
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path

C = typing.TypeVar("C")


class ConfigError(Exception):
    """A configuration variable is wrong; the message names it."""


def _parse_bool(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError("expected true or false")
    return values[text.lower()]


_PARSERS: dict[type, Callable[[str], object]] = {
    bool: _parse_bool,
    int: int,
    float: float,
    str: str,
    Path: Path,
}


def _parse(kind: object, text: str) -> object:
    """Parses `text` as `kind`: bool, int, float, str, Path, `X | None` or a comma-separated `tuple[X, ...]`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (inner,) = (member for member in typing.get_args(kind) if member is not type(None))
        return _parse(inner, text) if text else None
    if typing.get_origin(kind) is tuple:
        member = typing.get_args(kind)[0]
        return tuple(_parse(member, part.strip()) for part in text.split(",") if part.strip())
    return _PARSERS[typing.cast(type, kind)](text)


def load_config(cls: type[C], prefix: str, environ: Mapping[str, str] = os.environ) -> C:
    """Fills the dataclass `cls` from variables named `{prefix}_{FIELD}`; unset ones keep their default.

    Raises ConfigError, naming the variable, for a value that does not parse, a required one that is missing,
    a variable of this prefix that no field has, and a value that the class's own `__post_init__` refuses.
    """
    hints = typing.get_type_hints(cls)
    names = {f"{prefix}_{name.upper()}": name for name in hints}
    for variable in environ:
        if variable.startswith(f"{prefix}_") and variable not in names:
            raise ConfigError(f"{variable} is not a setting; there are {', '.join(sorted(names))}")
    values: dict[str, object] = {}
    for variable, name in names.items():
        if variable in environ:
            try:
                values[name] = _parse(hints[name], environ[variable])
            except ValueError as error:
                raise ConfigError(f"{variable}={environ[variable]!r}: {error}") from None
    required = (field.name for field in dataclasses.fields(cls) if _is_required(field))  # type: ignore[arg-type]
    for name in required:
        if name not in values:
            raise ConfigError(f"{prefix}_{name.upper()} must be set")
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{prefix}_*: {error}") from None


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
