"""Keeps what was learnt in a file: one per model, arithmetic, device and configuration."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_NUM_BYTES = 16 << 20


def state_path(directory: Path, *, model: str, numerics_id: str, device: str, configuration: str) -> Path:
    """Returns the file for what was learnt of one model on one device in one configuration."""
    key = json.dumps([model, numerics_id, device, configuration])
    return directory / f"controller-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the file for its owner alone; whoever reads it finds the old one or the new one, whole."""
    body = json.dumps(state, allow_nan=False)
    envelope = {"saved_at": time.time(), "digest": _digest(body), "state": body}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(envelope, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[dict[str, Any], float] | None:
    """Returns the state and its age in seconds; None if there is no file; ValueError names a corrupt one."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_NUM_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        envelope = json.loads(body)
        text, saved_at = envelope["state"], float(envelope["saved_at"])
        if envelope["digest"] != _digest(text):
            raise ValueError("its digest does not agree")
        state = json.loads(text)
        if not isinstance(state, dict):
            raise ValueError("it holds no state")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is corrupt: {error or type(error).__name__}") from None
    return state, max(0.0, time.time() - saved_at)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
