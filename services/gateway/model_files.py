"""Reading the JSON files of a model's directory."""

import json
from pathlib import Path
from typing import Any

from outrider.rpc.config import ConfigError


def read_text(path: Path) -> str:
    """Reads a file; raises ConfigError naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises ConfigError naming the file. A file that does not exist is empty."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not a JSON object")
    return value
