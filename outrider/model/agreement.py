"""Ranks agree before they load: a near tie at a gate must not be decided differently on one of them."""

import hashlib
import json
from dataclasses import asdict, replace

import torch

from outrider.model.checkpoint import Checkpoint
from outrider.model.errors import ModelError
from outrider.model.numerics import Numerics
from outrider.model.placement import Placement
from outrider.model.ranks import Ranks

TEXT_BYTES = 4096  # room for what a rank says of itself


def agree(
    numerics: Numerics,
    checkpoint: Checkpoint,
    placement: Placement | None,
    ranks: Ranks,
    device: torch.device,
) -> Numerics:
    """Rank 0's numerics, which alone names the checkpoint; raises ModelError on all if any rank differs."""
    if ranks.num_ranks == 1:
        return numerics
    facts = asdict(numerics) | {
        "headers": headers_digest(checkpoint),
        "placement": None if placement is None else hashlib.sha256(placement.experts.tobytes()).hexdigest(),
    }
    of_ranks = [json.loads(text) for text in gather_texts(json.dumps(facts), ranks, device)]
    first = of_ranks[0]
    for rank, other in enumerate(of_ranks):
        for name in facts:
            if name != "checkpoint" and other[name] != first[name]:
                raise ModelError(f"rank {rank} has {name} {other[name]!r}, and rank 0 {first[name]!r}")
    return replace(numerics, checkpoint=first["checkpoint"])


def headers_digest(checkpoint: Checkpoint) -> str:
    """Hash of the names, shapes, types and files of all tensors."""
    lines = sorted(
        f"{name} {list(tensor.shape)} {tensor.dtype} {tensor.file.name}"
        for name, tensor in checkpoint.tensors.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def gather_texts(text: str, ranks: Ranks, device: torch.device) -> list[str]:
    """The text of every rank."""
    content = text.encode()
    assert len(content) <= TEXT_BYTES, f"a rank says {len(content)} bytes of itself"
    padded = torch.frombuffer(bytearray(content.ljust(TEXT_BYTES)), dtype=torch.uint8)
    return [row.numpy().tobytes().decode() for row in ranks.all_gather(padded.to(device)).cpu()]
