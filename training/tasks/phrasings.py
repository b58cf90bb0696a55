"""The many ways to ask one thing, read from phrasings.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random


@cache
def phrasings(family: str, name: str) -> list[str]:
    """All phrasings of one kind of question."""
    families = tomllib.loads(Path(__file__).with_name("phrasings.toml").read_text())
    return families[family][name].strip().split("\n")


def phrase(rng: Random, family: str, name: str) -> str:
    """One phrasing, drawn."""
    return rng.choice(phrasings(family, name))


@cache
def words(family: str, name: str) -> list[str]:
    """Names, things, or words to be spelt."""
    return " ".join(phrasings(family, name)).split()
