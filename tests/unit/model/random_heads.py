"""Random draft heads in the published form, and what they compute, said plainly in float64."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.model.draft_head_config import DraftHeadConfig, head_tensors, optional_tensors
from tests.unit.model.random_models import VOCAB_SIZE

DRAFT_VOCAB_SIZE = 40


def head_config(**changes: Any) -> dict[str, Any]:
    """A config.json for a head of tests.unit.model.random_models' networks."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    } | changes


def write_head(
    directory: Path, config: dict[str, Any], *, optional: tuple[str, ...] = ("lm_head.weight", "d2t", "t2d")
) -> Path:
    """Writes a config.json and random weights, of the optional tensors those that are named."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    parsed = DraftHeadConfig.from_directory(directory)
    generator = torch.Generator().manual_seed(11)
    shapes = head_tensors(parsed) | {name: optional_tensors(parsed)[name] for name in optional}
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * values if len(shape) == 1 else values * 1.5 * shape[1] ** -0.5
    ids = torch.randperm(VOCAB_SIZE, generator=generator)[: parsed.draft_vocab_size].sort().values
    tensors |= {name: value for name, value in id_maps(ids).items() if name in optional}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def id_maps(ids: Tensor) -> dict[str, Tensor]:
    """The published maps of draft tokens with these ids in the target."""
    known = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


class PlainHead:
    """The head as the paper has it, all rows at once, in float64."""

    def __init__(self, head: Path, target: Path) -> None:
        self.config = json.loads((head / "config.json").read_text())
        self.own = {name: widened(tensor) for name, tensor in load_file(head / "model.safetensors").items()}
        self.target = {name: widened(t) for name, t in load_file(target / "model.safetensors").items()}

    def features(self, tapped: Tensor) -> Tensor:
        """What the worker makes of concatenated hidden vectors."""
        return tapped.double() @ self.own["fc.weight"].T

    def draft(self, features: Tensor, token_ids: list[int], num_tokens: int) -> list[int]:
        """The likeliest tokens behind a text, given the features before its last tokens.

        Every row is computed anew for every token.
        """
        inputs, next_ids = list(features.double()), list(token_ids[-len(features) :])
        drafted: list[int] = []
        for _ in range(num_tokens):
            hidden, logits = self.rows(torch.stack(inputs), next_ids)
            drafted.append(int(logits[-1].argmax()))
            inputs.append(hidden[-1])
            next_ids.append(drafted[-1])
        return drafted

    def rows(self, inputs: Tensor, next_ids: list[int]) -> tuple[Tensor, Tensor]:
        """Output and logits of rows of a feature, or what stands for it, and the token after its own."""
        own = self.own
        embedding = own.get("embed_tokens.weight", self.target["model.embed_tokens.weight"])
        token = self.norm(embedding[next_ids], "midlayer.input_layernorm")
        feature = self.norm(inputs, "midlayer.hidden_norm")
        x = feature if self.config.get("norm_before_residual") else inputs
        x = x + self.attend(torch.cat([token, feature], dim=1))
        normed = self.norm(x, "midlayer.post_attention_layernorm")
        gate, up = (normed @ own[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ own["midlayer.mlp.down_proj.weight"].T
        return x, self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        V = self.config["vocab_size"]
        known = torch.arange(self.config["draft_vocab_size"])
        if "d2t" in self.own:
            known = known + self.own["d2t"].long()
        head = (
            self.own["lm_head.weight"]
            if "lm_head.weight" in self.own
            else self.target["lm_head.weight"][known]
        )
        logits = torch.full((len(x), V), -torch.inf, dtype=torch.float64)
        logits[:, known] = self.norm(x, "norm") @ head.T
        return logits

    def attend(self, both: Tensor) -> Tensor:
        mixed = self.attend_latent(both) if "kv_lora_rank" in self.config else self.attend_grouped(both)
        return mixed.transpose(0, 1).flatten(1) @ self.own["midlayer.self_attn.o_proj.weight"].T

    def attend_latent(self, both: Tensor) -> Tensor:
        """Keys and values decompressed; without any stretch of positions."""
        own, C = self.own, self.config["kv_lora_rank"]
        prefix, nope = "midlayer.self_attn.", self.config["qk_nope_head_dim"]
        down = self.norm(both @ own[f"{prefix}q_a_proj.weight"].T, f"{prefix}q_a_layernorm", 1e-6)
        heads = (self.config["num_attention_heads"], -1)
        q = (down @ own[f"{prefix}q_b_proj.weight"].T).unflatten(1, heads).transpose(0, 1)
        kv = both @ own[f"{prefix}kv_a_proj_with_mqa.weight"].T
        latent = self.norm(kv[:, :C], f"{prefix}kv_a_layernorm", 1e-6)
        both_up = (latent @ own[f"{prefix}kv_b_proj.weight"].T).unflatten(1, heads).transpose(0, 1)
        turned = self.turn(apart(kv[None, :, C:])).expand(len(q), -1, -1)
        k = torch.cat([both_up[..., :nope], turned], dim=-1)
        q = torch.cat([q[..., :nope], self.turn(apart(q[..., nope:]))], dim=-1)
        return causal(q, k, both_up[..., nope:])

    def attend_grouped(self, both: Tensor) -> Tensor:
        H, G, P = (self.config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (
            (both @ self.own[f"midlayer.self_attn.{name}_proj.weight"].T)
            .unflatten(1, (-1, P))
            .transpose(0, 1)
            for name in "qkv"
        )
        q, k = self.turn(q), self.turn(k).repeat_interleave(H // G, dim=0)
        return causal(q, k, v.repeat_interleave(H // G, dim=0))

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()],
            dim=-1,
        )

    def norm(self, x: Tensor, name: str, epsilon: float | None = None) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + (epsilon or self.config["rms_norm_eps"])).rsqrt()
        return x * scale * self.own[f"{name}.weight"]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (scores + torch.full_like(scores, -torch.inf).triu(1)).softmax(-1) @ v


def apart(x: Tensor) -> Tensor:
    """Pairs of neighbours as two halves."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


def widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
