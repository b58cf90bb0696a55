"""The numerics id changes with everything that changes bits, and with nothing else."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.model import numerics
from outrider.model.numerics import Numerics, checkpoint_digest, instruction_set
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import llama_config, write_checkpoint


@pytest.fixture
def directory(tmp_path):
    return write_checkpoint(tmp_path / "model", llama_config())


def digest(directory) -> str:
    return checkpoint_digest(directory / "config.json", [directory / "model.safetensors"])


def test_the_id_is_the_same_for_the_same_checkpoint_elsewhere(directory, tmp_path):
    copy = write_checkpoint(tmp_path / "copy", llama_config())
    assert Transformer.load(directory).numerics_id == Transformer.load(copy).numerics_id


def test_the_id_depends_on_the_type(directory):
    ids = {Transformer.load(directory, dtype=dtype).numerics_id for dtype in (torch.float32, torch.bfloat16)}
    assert len(ids) == 2


@pytest.mark.parametrize("limit", [1 << 30, 0], ids=["whole", "sampled"])
def test_the_digest_depends_on_weights_and_config(directory, monkeypatch, limit):
    monkeypatch.setattr(numerics, "MAX_FULL_HASH_BYTES", limit)
    digests = {digest(directory)}
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    digests.add(digest(directory))
    (directory / "config.json").write_text(json.dumps(llama_config(rope_theta=5e5)))
    digests.add(digest(directory))
    assert len(digests) == 3


def test_of_a_gpu_its_name_and_capability_count(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert instruction_set(torch.device("cuda", 0)) == "Some GPU 9.0"


def test_every_part_counts():
    one = Numerics(
        checkpoint="c",
        backend="torch",
        kernel_version=1,
        dtype="d",
        instruction_set="i",
        library="l",
        num_threads=1,
        num_ranks=1,
    )
    others = [
        replace(one, **{name: 2 if isinstance(value, int) else "other"}) for name, value in vars(one).items()
    ]
    assert len({one.id, *(other.id for other in others)}) == 1 + len(others)
