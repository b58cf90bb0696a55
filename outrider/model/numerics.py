"""The numerics id: two groups with equal ids give equal bits for equal questions."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

MAX_FULL_HASH_BYTES = 1 << 30
SAMPLE_BYTES = 1 << 16
NUM_SAMPLES_PER_FILE = 256
ID_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What the bits of a logits row depend on, apart from the row's own tokens."""

    checkpoint: str  # from checkpoint_digest
    backend: str
    kernel_version: int
    dtype: str
    instruction_set: str
    library: str
    num_threads: int  # fp32 products of many inputs are split by it; zero where other devices compute
    num_ranks: int

    @property
    def id(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def checkpoint_digest(config_file: Path, weight_files: list[Path]) -> str:
    """Hash of config and weights: every byte of small checkpoints, headers and samples of large ones."""
    digest = hashlib.sha256(config_file.read_bytes())
    whole = sum(file.stat().st_size for file in weight_files) <= MAX_FULL_HASH_BYTES
    for file in weight_files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            step = SAMPLE_BYTES if whole else max(size // NUM_SAMPLES_PER_FILE, SAMPLE_BYTES)
            if not whole:
                digest.update(opened.read(8 + int.from_bytes(opened.read(8), "little")))
            for offset in range(0, size, step):
                opened.seek(offset)
                digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()


def instruction_set(device: torch.device) -> str:
    """What libraries choose kernels and block sizes by.

    Of a processor its vector features and cache sizes, of a GPU its name and compute capability.
    """
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} {major}.{minor}"
    features = torch.cpu.get_capabilities()
    chosen = [
        f"{k}={int(v)}"
        for k, v in sorted(features.items())
        if k.startswith(("avx", "amx", "l1", "l2", "fma", "sve"))
    ]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *chosen])
