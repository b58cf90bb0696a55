"""Random checkpoints in the Hugging Face form, small enough for a test."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider.model.config import ModelConfig
from outrider.model.weights import plain_tensors

VOCAB_SIZE = 97
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def deepseek_config(**changes: Any) -> dict[str, Any]:
    """A config.json of the DeepSeek-V3 kind with every feature in use."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": YARN,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | changes


def interpreted_config(**changes: Any) -> dict[str, Any]:
    """A config.json of the DeepSeek-V3 kind for Triton's interpreter, where a program takes milliseconds."""
    return (
        deepseek_config(
            hidden_size=128,
            intermediate_size=64,
            moe_intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            q_lora_rank=None,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            v_head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            max_position_embeddings=64,
        )
        | changes
    )


def llama_config(**changes: Any) -> dict[str, Any]:
    """A config.json of the Llama kind."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": [1, 2],
    } | changes


def write_checkpoint(
    directory: Path, config: dict[str, Any], *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Path:
    """Write a config.json and random weights that keep activations near one."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(directory, dtype, seed), directory / "model.safetensors", {"format": "pt"})
    return directory


def random_tensors(directory: Path, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in plain_tensors(ModelConfig.from_directory(directory)):
        values = torch.randn(shape, generator=generator)
        if name.endswith("e_score_correction_bias"):
            tensors[name] = values * 0.1
        elif len(shape) == 1:
            tensors[name] = (1 + values * 0.1).to(dtype)
        else:
            tensors[name] = (values * (1.0 if "embed" in name else 1.5 * shape[1] ** -0.5)).to(dtype)
    return tensors
