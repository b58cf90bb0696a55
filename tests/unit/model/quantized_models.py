"""Random checkpoints in the published int4 and FP8 forms, each with a plain twin of the same values."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.unit.model.random_models import deepseek_config, write_checkpoint

# As in the config.json of Kimi K2.5.
KIMI_IGNORE = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
]


def int4_section(**changes: Any) -> dict[str, Any]:
    """A quantization_config as Kimi K2.5 has it."""
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group",
        "symmetric": True,
        "type": "int",
    }
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "global_compression_ratio": None,
        "ignore": KIMI_IGNORE,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    } | changes


def fp8_section(**changes: Any) -> dict[str, Any]:
    """A quantization_config as DeepSeek-V3 has it."""
    return {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    } | changes


def int4_config(**changes: Any) -> dict[str, Any]:
    """A network of whole groups throughout, its routed experts in int4."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "q_lora_rank": 32,
        "v_head_dim": 16,
    }
    return deepseek_config(**sizes | {"quantization_config": int4_section()} | changes)


def fp8_config(**changes: Any) -> dict[str, Any]:
    """A network whose linears are all in FP8."""
    return deepseek_config(**{"quantization_config": fp8_section()} | changes)


def write_pair(directory: Path, config: dict[str, Any], dtype: torch.dtype) -> tuple[Path, Path]:
    """Write a checkpoint whose linears are stored as its quantization_config says, and its twin.

    The twin holds the same values, of those linears in `dtype`, without a quantization_config.
    """
    plain = {name: value for name, value in config.items() if name != "quantization_config"}
    twin = write_checkpoint(directory / "twin", plain, dtype=torch.bfloat16)
    quantized = directory / "quantized"
    values = write_quantized(twin, quantized, config["quantization_config"])
    tensors = load_file(twin / "model.safetensors")
    tensors |= {name: torch.from_numpy(value).to(dtype) for name, value in values.items()}
    save_file(tensors, twin / "model.safetensors", {"format": "pt"})
    return quantized, twin


def write_quantized(plain: Path, directory: Path, section: dict[str, Any]) -> dict[str, np.ndarray]:
    """Write a plain checkpoint in the form of a quantization_config; returns the weights' values by name."""
    directory.mkdir(parents=True)
    for file in filter(Path.is_file, plain.iterdir()):
        shutil.copy(file, directory)
    config = json.loads((plain / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    stored: dict[str, Tensor] = {}
    values: dict[str, np.ndarray] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        linear = name.removesuffix(".weight")
        if "_proj" not in name or is_ignored(linear, section):
            stored[name] = tensor
        else:
            quantize = int4_parts if section["quant_method"] == "compressed-tensors" else fp8_parts
            parts, values[name] = quantize(tensor.float().numpy())
            stored |= {f"{linear}.{part}": value for part, value in parts.items()}
    save_file(stored, directory / "model.safetensors", {"format": "pt"})
    return values


def is_ignored(linear: str, section: dict[str, Any]) -> bool:
    """Whether a linear is kept plain by one of the lists that the tests use."""
    if section["quant_method"] == "fp8":
        return linear in section.get("modules_to_not_convert", ())
    if section["ignore"] == KIMI_IGNORE:
        return ".mlp.experts." not in linear
    return linear in section["ignore"]


def int4_parts(weight: np.ndarray) -> tuple[dict[str, Tensor], np.ndarray]:
    """The tensors of a weight [N, K] in compressed-tensors' form, and the values that they stand for."""
    N, K = weight.shape
    scales = torch.from_numpy(np.abs(weight).reshape(N, K // 32, 32).max(2) / 7.5).to(torch.bfloat16)
    packed = np.zeros((N, K // 8), np.uint32)
    values = np.empty((N, K), np.float32)
    for k in range(K):
        scale = scales[:, k // 32].float().numpy()
        q = np.clip(np.rint(weight[:, k] / scale), -8, 7)
        packed[:, k // 8] += (q + 8).astype(np.uint32) * np.uint32(16 ** (k % 8))
        values[:, k] = q * scale
    parts = {
        "weight_packed": torch.from_numpy(packed.view(np.int32)),
        "weight_scale": scales,
        "weight_shape": torch.tensor([N, K], dtype=torch.int32),
    }
    return parts, values


def fp8_parts(weight: np.ndarray) -> tuple[dict[str, Tensor], np.ndarray]:
    """The tensors of a weight [N, K] in DeepSeek's FP8 form, and the values that they stand for."""
    N, K = weight.shape
    stored = torch.empty(N, K, dtype=torch.float8_e4m3fn)
    scales = np.empty((-(-N // 128), -(-K // 128)), np.float32)
    values = np.empty((N, K), np.float32)
    for n in range(0, N, 128):
        for k in range(0, K, 128):
            block = weight[n : n + 128, k : k + 128]
            scale = scales[n // 128, k // 128] = np.abs(block).max() / np.float32(448)
            rounded = torch.from_numpy(block / scale).to(torch.float8_e4m3fn)
            stored[n : n + 128, k : k + 128] = rounded
            values[n : n + 128, k : k + 128] = rounded.float().numpy() * scale
    return {"weight": stored, "weight_scale_inv": torch.from_numpy(scales)}, values
