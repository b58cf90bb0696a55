"""A small dense Llama network in the form that trains on a CPU; its names are those of the checkpoint.

All query heads share one key and value head (arXiv 1911.02150): what a draft model reads of its cache is most
of its time, and of its memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from training.network import MLP, Block, RMSNorm, attend, linear


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes, under the names of a Hugging Face config.json."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.hidden_size // self.num_attention_heads

    def as_dict(self) -> dict[str, int | float]:
        """The fields, for config.json."""
        return {**asdict(self), "head_dim": self.head_dim}


Angles = tuple[Tensor, Tensor]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotates the halves of x [T, h, head] against each other by the position's angles."""
    cos, sin = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = linear(config.hidden_size, config.hidden_size)
        self.k_proj = linear(config.hidden_size, key_width)
        self.v_proj = linear(config.hidden_size, key_width)
        self.o_proj = linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, angles: Angles, blocks: list[Block]) -> Tensor:
        q, k, v = (
            product(x).unflatten(-1, (-1, self.config.head_dim))
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )  # [T, h, head]
        repeats = q.shape[1] // k.shape[1]
        k = rotate(k, angles).repeat_interleave(repeats, dim=1)
        mixed = attend(rotate(q, angles), k, v.repeat_interleave(repeats, dim=1), blocks)
        return self.o_proj(mixed.flatten(1))


class Layer(nn.Module):
    """Attention and feed-forward, each on a normed copy of the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, angles: Angles, blocks: list[Block]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, blocks)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids to hidden states; `lm_head` makes logits of them."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def angles(self, positions: Tensor) -> Angles:
        """Cosine and sine of each position's angles, [T, 1, head / 2]."""
        size = self.config.head_dim
        frequencies = self.config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        turns = positions[:, None, None].float() * frequencies
        return turns.cos(), turns.sin()

    def forward(self, token_ids: Tensor, positions: Tensor, blocks: list[Block]) -> Tensor:
        """The last hidden states, normed, [T, D]."""
        x, angles = self.embed_tokens(token_ids), self.angles(positions)
        for layer in self.layers:
            x = layer(x, angles, blocks)
        return self.norm(x)
