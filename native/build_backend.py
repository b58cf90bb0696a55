"""setuptools' build backend, which asks for a compiler from the package index where the machine has none."""

from typing import Any

import compiler
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def _compiler() -> list[str]:
    # To be asked first: setuptools runs setup.py, which then names a compiler.
    return [] if compiler.is_at_hand() else ["ziglang>=0.13"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns what building a wheel needs beyond pyproject.toml."""
    return [*_compiler(), *build_meta.get_requires_for_build_wheel(config_settings)]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns what an editable install needs beyond pyproject.toml."""
    return [*_compiler(), *build_meta.get_requires_for_build_editable(config_settings)]
