"""Checkpoints in int4 and FP8: computed as their plain twins are, and refused where they do not agree."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.model.checkpoint import Checkpoint
from outrider.model.config import ModelConfig
from outrider.model.errors import CheckpointError
from outrider.model.transformer import Transformer
from tests.unit.model.quantized_models import (
    fp8_config,
    fp8_section,
    int4_config,
    int4_parts,
    int4_section,
    write_pair,
)
from tests.unit.model.random_models import llama_config
from tests.unit.model.sequences import Driver

TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
EXPERT = "model.layers.1.mlp.experts.2.up_proj"
CONFIGS = {
    "int4 experts": int4_config(),
    "int4 throughout": int4_config(quantization_config=int4_section(ignore=["lm_head"])),
    "int4 but for one of two stacked": int4_config(
        quantization_config=int4_section(ignore=["model.layers.1.self_attn.q_a_proj", "lm_head"])
    ),
    "int4 but for one of the experts": int4_config(
        quantization_config=int4_section(ignore=["model.layers.1.mlp.experts.3.down_proj", "lm_head"])
    ),
    "fp8 within single blocks": fp8_config(),
    "fp8 without compressed queries": fp8_config(q_lora_rank=None),
    "fp8 of whole blocks": fp8_config(
        hidden_size=256, q_lora_rank=128, moe_intermediate_size=128, intermediate_size=256, kv_lora_rank=128
    ),
    "fp8 of blocks that are cut": fp8_config(
        hidden_size=144, q_lora_rank=136, moe_intermediate_size=160, intermediate_size=200, kv_lora_rank=160
    ),
    "fp8 llama": llama_config(quantization_config=fp8_section()),
    "fp8 but for one": fp8_config(
        quantization_config=fp8_section(modules_to_not_convert=["model.layers.1.self_attn.o_proj"])
    ),
}


def logits(directory, dtype=torch.float32):
    return Driver(Transformer.load(directory, dtype=dtype)).logits(TOKENS)


def change(directory, edit):
    """Apply edit(tensors) to the weight file."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quantized")
    return {
        "int4": write_pair(directory / "int4", int4_config(), torch.float32)[0],
        "fp8": write_pair(directory / "fp8", fp8_config(), torch.float32)[0],
    }


@pytest.fixture(params=["int4", "fp8"])
def quantized(request, written, tmp_path):
    return shutil.copytree(written[request.param], tmp_path / request.param)


@pytest.fixture
def int4(written, tmp_path):
    return shutil.copytree(written["int4"], tmp_path / "int4")


@pytest.fixture
def fp8(written, tmp_path):
    return shutil.copytree(written["fp8"], tmp_path / "fp8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_bits_are_those_of_the_plain_twin(tmp_path, kind, dtype):
    quantized, twin = write_pair(tmp_path, CONFIGS[kind], dtype)
    assert torch.equal(logits(quantized, dtype), logits(twin, dtype))


def test_without_a_type_the_embedding_decides_it(quantized):
    assert Checkpoint.open(quantized).dtype == torch.bfloat16


def test_progress_counts_the_stored_bytes(quantized):
    calls = []
    Transformer.load(quantized, progress=lambda done, total: calls.append((done, total)))
    stored = sum(tensor.nbytes for tensor in load_file(quantized / "model.safetensors").values())
    assert calls[-1] == (stored, stored)


@pytest.mark.parametrize("places", [("top",), ("text",), ("top", "text")], ids="+".join)
def test_a_multimodal_wrapper_is_read_wherever_its_section_stands(int4, places):
    alone = logits(int4)
    text = int4_config(model_type="kimi_k2")
    section = text.pop("quantization_config")
    config = {"model_type": "kimi_k25", "text_config": text, "vision_config": {}}
    for place in places:
        (config if place == "top" else text)["quantization_config"] = section
    (int4 / "config.json").write_text(json.dumps(config))

    def wrap(tensors):
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch_embed.weight"] = torch.zeros(4)

    change(int4, wrap)
    assert torch.equal(logits(int4), alone)


def test_a_pattern_may_spell_the_wrapper_s_prefix(int4):
    config = int4_config()
    config["quantization_config"]["ignore"] = [
        r"re:language_model\.model\.layers\.\d+\.(self_attn|mlp\.(shared|gate|up|down)).*"
    ]
    alone = logits(int4)
    (int4 / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(int4), alone)


def test_layers_past_the_last_are_skipped_in_any_form(quantized):
    alone = logits(quantized)

    def add_prediction_layer(tensors):
        for name in list(tensors):
            if name.startswith("model.layers.2."):
                tensors[name.replace("layers.2.", "layers.3.")] = tensors[name].clone()

    change(quantized, add_prediction_layer)
    assert torch.equal(logits(quantized), alone)


def test_the_shape_beside_a_packed_weight_may_be_of_64_bits(int4):
    alone = logits(int4)
    change(
        int4,
        lambda tensors: tensors.update(
            {name: tensors[name].long() for name in tensors if name.endswith("weight_shape")}
        ),
    )
    assert torch.equal(logits(int4), alone)


def test_a_plain_weight_where_another_is_said_is_named(quantized):
    def store_plain(tensors):
        for name in [name for name in tensors if name.startswith(EXPERT)]:
            del tensors[name]
        tensors[f"{EXPERT}.weight"] = torch.zeros(8, 8)

    change(quantized, store_plain)
    with pytest.raises(
        CheckpointError, match=rf"than quantization_config says: {EXPERT} is plain, not (int4|fp8)"
    ):
        Transformer.load(quantized)


def test_a_quantized_weight_where_a_plain_one_is_said_is_named(quantized):
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"says: model\.layers\.\S+_proj is (int4|fp8), not plain"):
        Transformer.load(quantized)


def test_a_weight_in_the_other_form_is_named(fp8):
    parts, _ = int4_parts(torch.zeros(24, 32).numpy() + 1)

    def pack(tensors):
        del tensors[f"{EXPERT}.weight"], tensors[f"{EXPERT}.weight_scale_inv"]
        tensors.update({f"{EXPERT}.{name}": part for name, part in parts.items()})

    change(fp8, pack)
    with pytest.raises(CheckpointError, match=rf"{EXPERT} is int4, not fp8"):
        Transformer.load(fp8)


@pytest.mark.parametrize(
    ("kind", "part", "value", "message"),
    [
        ("int4", "weight_scale", torch.zeros(32, 3, dtype=torch.bfloat16), r"is \[32, 3\], not \[32, 2\]"),
        ("int4", "weight_scale", torch.zeros(32, 2, dtype=torch.float16), "is F16, not BF16"),
        ("int4", "weight_packed", torch.zeros(32, 9, dtype=torch.int32), r"is \[32, 9\], not \[32, 8\]"),
        ("int4", "weight_packed", torch.zeros(32, 8, dtype=torch.int64), "is I64, not I32"),
        (
            "int4",
            "weight_shape",
            torch.tensor([32, 60], dtype=torch.int32),
            r"states \[32, 60\], and .* \[32, 64\]",
        ),
        ("int4", "weight_scale", None, r"1 missing tensors: .*weight_scale \[32, 2\]"),
        ("fp8", "weight_scale_inv", torch.zeros(2, 1), r"is \[2, 1\], not \[1, 1\]"),
        ("fp8", "weight_scale_inv", torch.zeros(1, 1, dtype=torch.bfloat16), "is BF16, not F32"),
        ("fp8", "weight_scale_inv", None, r"1 missing tensors: .*weight_scale_inv \[1, 1\]"),
    ],
)
def test_a_part_of_a_weight_that_is_wrong_is_named(written, tmp_path, kind, part, value, message):
    directory = shutil.copytree(written[kind], tmp_path / kind)

    def put(tensors):
        del tensors[f"{EXPERT}.{part}"]
        if value is not None:
            tensors[f"{EXPERT}.{part}"] = value

    change(directory, put)
    with pytest.raises(CheckpointError, match=message) as caught:
        Transformer.load(directory)
    assert f"{EXPERT}.{part}" in str(caught.value)
    assert str(directory) in str(caught.value)


def test_inputs_that_are_no_whole_groups_are_refused(int4):
    (int4 / "config.json").write_text(json.dumps(int4_config(moe_intermediate_size=40)))
    with pytest.raises(CheckpointError, match=r"down_proj: 40 inputs are not whole groups of 32"):
        Checkpoint.open(int4).check(ModelConfig.from_directory(int4))
