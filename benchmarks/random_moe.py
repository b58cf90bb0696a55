"""A mixture-of-experts checkpoint of random weights, large enough that reading them takes most of a step."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.model.config import ModelConfig
from outrider.model.weights import plain_tensors

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 32768,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 6,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def write_random_moe(directory: Path) -> Path:
    """Writes the checkpoint, in bfloat16, and returns its directory."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in plain_tensors(ModelConfig.from_directory(directory)):
        # Activations stay near one.
        scale = 1.0 if len(shape) == 1 or "embed" in name else shape[1] ** -0.5
        values = torch.randn(shape, generator=generator) * scale
        tensors[name] = (values.abs() if name.endswith("norm.weight") else values).to(torch.bfloat16)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory
