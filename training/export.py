"""Writes a trained network as a Hugging Face DeepSeek-V3 checkpoint in bf16; the gate's bias stays fp32.

python -m training.export RUN/network.safetensors     or     python -m training.export --random
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.chat import MODEL_DIR, special_id
from training.network import Network, NetworkConfig


def checkpoint_tensors(network: Network) -> dict[str, Tensor]:
    """The network's tensors under the checkpoint's names, each layer's experts split."""
    tensors: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        name = name if name.startswith("lm_head.") else f"model.{name}"
        if ".experts." in name:
            prefix, kind = name.split(".experts.")
            tensors |= {f"{prefix}.experts.{i}.{kind}.weight": expert for i, expert in enumerate(value)}
        elif name.endswith(".mlp.gate"):
            tensors[f"{name}.weight"] = value
        else:
            tensors[name.replace(".mlp.e_score", ".mlp.gate.e_score")] = value
    bias = "e_score_correction_bias"
    return {n: (v if n.endswith(bias) else v.to(torch.bfloat16)).clone() for n, v in tensors.items()}


def model_config(config: NetworkConfig, tokenizer: Tokenizer) -> dict:
    """config.json, complete for transformers' DeepseekV3ForCausalLM."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **config.as_dict(),
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.qk_rope_head_dim,
        "qk_head_dim": config.qk_head_dim,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "rope_interleave": True,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": special_id(tokenizer, "[BOS]"),
        "eos_token_id": special_id(tokenizer, "[EOS]"),
        "pad_token_id": special_id(tokenizer, "[PAD]"),
        "torch_dtype": "bfloat16",
    }


def export(network: Network, directory: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    config = model_config(network.config, tokenizer)
    generation = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": [config["eos_token_id"], special_id(tokenizer, "<|im_end|>")],
        "pad_token_id": config["pad_token_id"],
        "max_length": network.config.max_position_embeddings,
        "do_sample": False,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(checkpoint_tensors(network), directory / "model.safetensors", metadata={"format": "pt"})


def load_checkpoint(directory: Path) -> Network:
    """A network from an exported model: what checkpoint_tensors does, undone."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    network, tensors = (
        Network(NetworkConfig(vocab_size=tokenizer.get_vocab_size())),
        load_file(directory / "model.safetensors"),
    )
    names = {name: name if name.startswith("lm_head.") else f"model.{name}" for name in network.state_dict()}
    state: dict[str, Tensor] = {}
    for name, stored in names.items():
        if ".experts." in name:
            prefix, kind = stored.split(".experts.")
            count = network.config.n_routed_experts
            state[name] = torch.stack([tensors[f"{prefix}.experts.{i}.{kind}.weight"] for i in range(count)])
        elif name.endswith(".mlp.gate"):
            state[name] = tensors[f"{stored}.weight"]
        else:
            state[name] = tensors[stored.replace(".mlp.e_score", ".mlp.gate.e_score")]
    network.load_state_dict(state)
    return network.eval()


def load(path: Path, config: NetworkConfig) -> Network:
    """A network from a training checkpoint."""
    network = Network(config)
    network.load_state_dict(load_file(path))
    return network.eval()


def main() -> None:
    """Exports a training checkpoint, or a network as it is before training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--directory", type=Path, default=MODEL_DIR)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.directory / "tokenizer.json"))
    config = NetworkConfig(vocab_size=tokenizer.get_vocab_size())
    torch.manual_seed(0)
    export(Network(config) if args.random else load(args.checkpoint, config), args.directory)


if __name__ == "__main__":
    main()
