"""The loads of experts kept in a file, so that a group that is restarted begins well placed.

They are counts, no text of users; the file is its owner's alone nevertheless. A file that is damaged, or of
another model, costs a warning and the balanced placement.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from outrider.model.placement import Loads

FORMAT = "outrider expert loads 1"
MAX_NUM_BYTES = 64 << 20

log = structlog.get_logger()


def loads_path(directory: Path, model_dir: Path, shape: tuple[int, int]) -> Path:
    """Returns the file of a model: one for each config.json, with its layers and experts."""
    config = hashlib.blake2b((model_dir / "config.json").read_bytes(), digest_size=8).hexdigest()
    return directory / f"loads-{config}-{shape[0]}x{shape[1]}.json"


def save_loads(path: Path, loads: Loads, num_tokens: float) -> None:
    """Writes the file; whoever reads it finds the old one or the new one, whole. A failure is logged."""
    body = json.dumps({"num_tokens": num_tokens, "loads": loads.round(1).tolist()})
    envelope = {"format": FORMAT, "digest": _digest(body), "body": body}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One group writes it: what an earlier one has left half written is written over.
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(envelope), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        log.warning("expert_loads_not_saved", file=str(path), reason=str(error))


def read_loads(path: Path, shape: tuple[int, int]) -> tuple[Loads, float] | None:
    """Returns loads [L, E] and the number of tokens; None if there is no file, or none that can be used."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_NUM_BYTES + 1)
        return _parse(content, shape)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        log.warning("expert_loads_unusable", file=str(path), reason=str(error)[:200])
        return None


def _parse(content: bytes, shape: tuple[int, int]) -> tuple[Loads, float]:
    envelope: dict[str, Any] = json.loads(content)
    if envelope["format"] != FORMAT:
        raise ValueError(f"its format is {envelope['format']!r}")
    if envelope["digest"] != _digest(envelope["body"]):
        raise ValueError("it is damaged: its digest is wrong")
    body = json.loads(envelope["body"])
    loads, num_tokens = np.array(body["loads"], dtype=np.float64), float(body["num_tokens"])
    if loads.shape != shape:
        raise ValueError(f"it has loads of {loads.shape}, not {shape}")
    if not (np.isfinite(loads).all() and (loads >= 0).all() and 0 <= num_tokens < np.inf):
        raise ValueError("it has loads that are none")
    return loads, num_tokens


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
