"""Opening checkpoints: what is accepted, what is skipped, and what is refused before anything is loaded."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.model.errors import CheckpointError, ModelError
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import Driver

PROMPT = list(range(20))


@pytest.fixture
def directory(tmp_path):
    return write_checkpoint(tmp_path / "model", deepseek_config())


def change_tensors(directory, change) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def logits(directory) -> torch.Tensor:
    return Driver(Transformer.load(directory)).logits(PROMPT)


def test_shards_give_the_same_model_as_one_file(directory, tmp_path):
    whole = logits(directory)
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "model.safetensors").unlink()
    assert torch.equal(logits(directory), whole)


def test_a_language_model_prefix_is_taken_off(directory):
    whole = logits(directory)

    def add_prefix(tensors):
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)

    change_tensors(directory, add_prefix)
    assert torch.equal(logits(directory), whole)


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.patch_embed.weight",
        "mm_projector.linear.weight",
        "model.layers.3.eh_proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_parts_that_the_network_does_not_use_are_skipped_and_logged(directory, name, caplog):
    change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(4)}))
    with caplog.at_level(logging.INFO, logger="outrider.model.checkpoint"):
        Transformer.load(directory)
    assert f"skipped 1 tensors of {directory}: {name}" in caplog.text


def test_progress_ends_at_the_total(directory):
    calls = []
    Transformer.load(directory, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert (
        calls[-1][0]
        == calls[-1][1]
        == sum(t.nbytes for t in load_file(directory / "model.safetensors").values())
    )


def test_weights_stored_as_fp16_and_bf16_are_loaded_in_any_type(tmp_path):
    for stored in (torch.float16, torch.bfloat16):
        directory = write_checkpoint(tmp_path / str(stored), llama_config(), dtype=stored)
        for dtype in (torch.float32, torch.bfloat16):
            assert Transformer.load(directory, dtype=dtype).dtype == dtype


def test_a_missing_tensor_is_named_with_its_shape(directory):
    change_tensors(directory, lambda tensors: tensors.pop("model.layers.1.mlp.gate.weight"))
    with pytest.raises(
        CheckpointError, match=r"1 missing tensors: model\.layers\.1\.mlp\.gate\.weight \[8, 48\]"
    ):
        Transformer.load(directory)


def test_a_wrong_shape_is_named_with_the_right_one(directory):
    change_tensors(directory, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(47)}))
    with pytest.raises(CheckpointError, match=r"wrong shape: model\.norm\.weight is \[47\], not \[48\]"):
        Transformer.load(directory)


def test_an_unexpected_tensor_is_named(directory):
    change_tensors(directory, lambda tensors: tensors.update({"model.layers.0.extra": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected tensors: model\.layers\.0\.extra"):
        Transformer.load(directory)


def test_a_type_that_is_not_supported_is_named(directory):
    change_tensors(
        directory, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(48, dtype=torch.int32)})
    )
    with pytest.raises(
        CheckpointError, match=r"wrong type: model\.norm\.weight is I32, not BF16 or F16 or F32"
    ):
        Transformer.load(directory)


def test_many_problems_of_a_kind_are_counted_in_one_line(directory):
    (directory / "config.json").write_text(json.dumps(deepseek_config(hidden_size=64)))
    with pytest.raises(CheckpointError, match=r"tensors of wrong shape: .* and \d+ more$"):
        Transformer.load(directory)


@pytest.mark.parametrize("num_bytes", [0, 4, 500, 20_000])
def test_a_truncated_file_is_named(directory, num_bytes):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged or not a safetensors file"):
        Transformer.load(directory)


def test_a_damaged_header_is_named(directory):
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"\xff" * 32
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged"):
        Transformer.load(directory)


def test_a_missing_weight_file_is_named(directory):
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is missing"):
        Transformer.load(directory)


def test_a_missing_shard_is_named(directory):
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors: is missing"):
        Transformer.load(directory)


def test_an_unknown_backend_is_refused_with_the_known_ones(directory):
    with pytest.raises(ValueError, match="backend 'abacus' is not one of torch"):
        Transformer.load(directory, backend="abacus")


def test_every_refusal_is_one_kind_of_error():
    assert issubclass(CheckpointError, ModelError)
