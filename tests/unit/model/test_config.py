"""Reading config.json: every public spelling, and one clear line for what cannot be run."""

import json
from pathlib import Path

import pytest

from outrider.model.config import LatentAttentionConfig, ModelConfig
from outrider.model.errors import ConfigError
from outrider.model.quantization import Storage, matches
from outrider.model.rotary import Yarn
from outrider.model.weights import linear_storages
from tests.unit.model.quantized_models import fp8_section, int4_section
from tests.unit.model.random_models import YARN, deepseek_config, llama_config


def read(directory: Path, config: dict) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_directory(directory)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2"])
def test_the_deepseek_family_is_read_under_its_names(tmp_path, model_type):
    config = read(tmp_path, deepseek_config(model_type=model_type))
    assert isinstance(config.attention, LatentAttentionConfig)
    assert config.moe
    assert (config.moe.num_groups, config.moe.num_kept_groups) == (4, 2)


def test_kimi_k25_is_read_from_its_text_config(tmp_path):
    text = deepseek_config(model_type="kimi_k2")
    wrapped = {"model_type": "kimi_k25", "text_config": text, "vision_config": {}}
    assert read(tmp_path, wrapped) == read(tmp_path, text)


def test_both_spellings_of_rotary_parameters_mean_the_same(tmp_path):
    new = deepseek_config(rope_parameters=YARN | {"rope_type": "yarn", "rope_theta": 50000.0})
    del new["rope_scaling"], new["rope_theta"]
    assert read(tmp_path, new) == read(tmp_path, deepseek_config(rope_theta=50000.0))


def test_the_softmax_scale_of_kimi_k25_carries_the_square_of_its_magnitude(tmp_path):
    stretch = YARN | {"factor": 64.0, "original_max_position_embeddings": 4096}
    config = read(tmp_path, deepseek_config(rope_scaling=stretch))
    assert isinstance(config.rotary.stretch, Yarn)
    assert config.rotary.softmax_factor == pytest.approx(2.0047, abs=1e-4)
    assert config.rotary.stretch.amplitude == 1.0


def test_magnitudes_that_are_zero_or_absent_are_not_given(tmp_path):
    stretches = YARN | {"mscale": 0, "mscale_all_dim": 0.0}, YARN | {"mscale": None, "mscale_all_dim": None}
    zero, absent = (read(tmp_path, deepseek_config(rope_scaling=stretch)) for stretch in stretches)
    assert zero == absent


def test_a_llama_without_head_width_divides_the_hidden_size(tmp_path):
    assert read(tmp_path, llama_config(head_dim=None)).attention.head_width == 8


def test_end_tokens_may_be_one_or_several(tmp_path):
    assert read(tmp_path, deepseek_config()).eos_token_ids == (1,)
    assert read(tmp_path, llama_config()).eos_token_ids == (1, 2)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: file: is missing"):
        ModelConfig.from_directory(tmp_path)


def test_a_config_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: file: cannot be read as JSON"):
        ModelConfig.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2' is not supported"),
        ({"model_type": None}, "model_type: is missing"),
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": -1}, "hidden_size: -1 is not an integer of at least 1"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers: '3' is not an integer"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: 0 is not a number above zero"),
        ({"norm_topk_prob": 1}, "norm_topk_prob: 1 is neither true nor false"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported, only 'silu'"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func: 'softmax' is not supported"),
        ({"n_group": 3}, "n_group: 8 experts do not form 3 groups"),
        ({"topk_group": 5}, "topk_group: 5 is more than the 4 groups"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than the kept groups hold"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim: 7 is odd"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.rope_type: 'su' is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor: is missing"),
        ({"rope_scaling": YARN | {"mscale": "x"}}, "rope_scaling.mscale: 'x' is not a number above zero"),
        ({"eos_token_id": "x"}, "eos_token_id: 'x' is neither a token id nor a list"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_field(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, deepseek_config(**changes))
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def int4_group(**weights) -> dict:
    (group,) = int4_section()["config_groups"].values()
    return {"config_groups": {"group_0": group | {"weights": group["weights"] | weights}}}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "quant_method: is missing"),
        ({"quant_method": "gptq"}, "quant_method: 'gptq' is not supported, only compressed-tensors and fp8"),
        (int4_section(format="int-quantized"), "format: 'int-quantized' is not supported, only 'pack-quan"),
        (int4_section(format=None), "format: is missing"),
        (int4_section(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme: .* is not supported, only None"),
        (int4_section(sparsity_config={"format": "x"}), "sparsity_config: .* is not supported"),
        (int4_section(config_groups={}), "config_groups: 0 groups are not supported, only one"),
        (int4_section(config_groups={"a": {}, "b": {}}), "config_groups: 2 groups are not supported"),
        (int4_section(config_groups={"a": {}}), r"config_groups\.a\.weights: is missing"),
        (int4_section(**int4_group(num_bits=8)), r"group_0\.weights\.num_bits: 8 is not supported, only 4"),
        (int4_section(**int4_group(group_size=128)), r"weights\.group_size: 128 is not supported, only 32"),
        (int4_section(**int4_group(symmetric=False)), r"weights\.symmetric: False is not supported"),
        (int4_section(**int4_group(strategy=None)), r"weights\.strategy: is missing"),
        (int4_section(**int4_group(type="float")), r"weights\.type: 'float' is not supported"),
        (int4_section(**int4_group(actorder="group")), r"weights\.actorder: 'group' is not supported"),
        (int4_section(ignore="lm_head"), "ignore: 'lm_head' is not a list of strings"),
        (int4_section(ignore=["re:("]), r"ignore: 're:\(' is not a pattern"),
        (fp8_section(weight_block_size=None), "weight_block_size: is missing"),
        (fp8_section(weight_block_size=[64, 64]), r"weight_block_size: \[64, 64\] is not supported"),
        (fp8_section(fmt="e5m2"), "fmt: 'e5m2' is not supported, only 'e4m3'"),
        (fp8_section(activation_scheme="static"), "activation_scheme: 'static' is not supported"),
        (fp8_section(modules_to_not_convert=[1]), r"modules_to_not_convert: \[1\] is not a list of strings"),
    ],
)
def test_a_quantization_that_is_not_read_is_refused_by_field(tmp_path, section, message):
    with pytest.raises(ConfigError, match=rf"quantization_config\.(\w+\.)*{message}"):
        read(tmp_path, deepseek_config(quantization_config=section))


def test_a_section_within_text_config_is_named_as_such(tmp_path):
    text = deepseek_config(model_type="kimi_k2", quantization_config={"quant_method": "awq"})
    with pytest.raises(ConfigError, match=r"text_config\.quantization_config\.quant_method: 'awq'"):
        read(tmp_path, {"model_type": "kimi_k25", "text_config": text})


def test_kimi_k25_s_patterns_leave_all_but_the_routed_experts_plain(tmp_path):
    storages = linear_storages(read(tmp_path, deepseek_config(quantization_config=int4_section())))
    int4 = {linear for linear, storage in storages.items() if storage == Storage.INT4}
    assert int4 == {linear for linear in storages if ".mlp.experts." in linear}
    assert len(int4) == 2 * 8 * 3


def test_deepseek_s_section_covers_every_linear(tmp_path):
    storages = linear_storages(read(tmp_path, deepseek_config(quantization_config=fp8_section())))
    assert set(storages.values()) == {Storage.FP8}


@pytest.mark.parametrize(
    ("entry", "covered"),
    [
        ("model.layers.1.mlp", True),
        ("mlp.up_proj", True),
        ("up_proj", True),
        ("language_model.model.layers.1.mlp.up_proj", True),
        ("Linear", True),
        (r"re:.*mlp\.(up|gate)_proj", True),
        ("re:language_model.*", True),
        ("model.layers.11.mlp", False),
        ("up", False),
        ("re:mlp", False),
    ],
)
def test_an_entry_covers_what_it_names_and_what_is_in_it(entry, covered):
    assert matches("model.layers.1.mlp.up_proj", [entry]) == covered
