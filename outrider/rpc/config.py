"""Configuration from environment variables: one frozen dataclass per service."""

import dataclasses
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
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
    """Parses `text` as `kind`: a type of _PARSERS, `X | None` or a comma-separated `tuple[X, ...]`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (inner,) = (member for member in typing.get_args(kind) if member is not type(None))
        return _parse(inner, text) if text else None
    if typing.get_origin(kind) is tuple:
        member = typing.get_args(kind)[0]
        return tuple(_parse(member, part.strip()) for part in text.split(",") if part.strip())
    return _PARSERS[typing.cast(type, kind)](text)


def load_config(cls: type[C], prefix: str, environ: Mapping[str, str] = os.environ) -> C:
    """Fills the dataclass `cls` from variables named `{prefix}_{FIELD}`; unset ones keep their default.

    The fields of a field that is itself a dataclass share the prefix, and keep the defaults of its instance.
    Raises ConfigError, naming the variable, for a value that does not parse, a required one that is missing,
    a variable of this prefix that no field has, and a value that a class's own `__post_init__` refuses.
    """
    known = set(_variables(cls, prefix))
    for variable in environ:
        if variable.startswith(f"{prefix}_") and variable not in known:
            raise ConfigError(f"{variable} is not a setting; there are {', '.join(sorted(known))}")
    return _build(cls, prefix, environ, dataclasses.MISSING)


def _variables(cls: type, prefix: str) -> Iterator[str]:
    for name, kind in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from _variables(typing.cast(type, kind), prefix)
        else:
            yield f"{prefix}_{name.upper()}"


def _build(cls: type[C], prefix: str, environ: Mapping[str, str], defaults: object) -> C:
    """Makes a `cls`; fields without a variable take their values from `defaults`, an instance or MISSING."""
    hints = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        kind, variable = hints[field.name], f"{prefix}_{field.name.upper()}"
        default = getattr(defaults, field.name, _default(field))
        if dataclasses.is_dataclass(kind):
            values[field.name] = _build(typing.cast(type, kind), prefix, environ, default)
        elif variable in environ:
            try:
                values[field.name] = _parse(kind, environ[variable])
            except ValueError as error:
                raise ConfigError(f"{variable}={environ[variable]!r}: {error}") from None
        elif default is dataclasses.MISSING:
            raise ConfigError(f"{variable} must be set")
        else:
            values[field.name] = default
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{prefix}_*: {error}") from None


def _default(field: dataclasses.Field) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
