"""The draft head in the form that trains: EAGLE-3 (arXiv 2503.01840), names and shapes as published.

Training-time test: the head is run on its own outputs for a few steps, as when it drafts. With features known
up to token b, step k computes the row at position b + k from the token after it; step 0 takes the feature:

    step 0   f[b]       and token b + 1    guesses token b + 2
    step 1   h0[b]      and token b + 2    guesses token b + 3
    step 2   h1[b]      and token b + 3    guesses token b + 4

The row of step k sees the rows of step 0 up to b, and those of steps 1 to k that began at b.
Shapes: N rows of L tokens each, H heads, G key and value heads, P their width, D model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.network import MLP, RMSNorm, linear


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Sizes, under the names of a published config.json."""

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    num_feature_layers: int = 3
    intermediate_size: int = 512
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 48
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096


@dataclass
class Seen:
    """Keys and values that later steps see: all of step 0, and of each later step those of the same start."""

    keys: list[Tensor]  # [N, H, L, P] each
    values: list[Tensor]


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotates first halves against second ones of x [N, h, L, P] by the positions [L]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class HeadAttention(nn.Module):
    """Grouped-query attention whose input is an embedding and a feature side by side."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        wide, width = 2 * config.hidden_size, config.head_dim
        self.q_proj = linear(wide, config.num_attention_heads * width)
        self.k_proj = linear(wide, config.num_key_value_heads * width)
        self.v_proj = linear(wide, config.num_key_value_heads * width)
        self.o_proj = linear(config.num_attention_heads * width, config.hidden_size)

    def forward(self, x: Tensor, positions: Tensor, seen: Seen) -> Tensor:  # x [N, L, 2 D] -> [N, L, D]
        theta, groups = (
            self.config.rope_theta,
            self.config.num_attention_heads // self.config.num_key_value_heads,
        )
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q = rotate(q, positions, theta)
        seen.keys.append(rotate(k, positions, theta).repeat_interleave(groups, dim=1))
        seen.values.append(v.repeat_interleave(groups, dim=1))
        out = attend(q, seen) if len(seen.keys) > 1 else attend_first(q, seen)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)


def attend_first(q: Tensor, seen: Seen) -> Tensor:
    return F.scaled_dot_product_attention(q, seen.keys[0], seen.values[0], is_causal=True)


def attend(q: Tensor, seen: Seen) -> Tensor:
    """Attends to step 0 up to the row's start, and to the later steps of the same start."""
    q = q * q.shape[-1] ** -0.5
    length = q.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = [(q @ seen.keys[0].mT).masked_fill(hidden, -torch.inf)]
    scores += [(q * keys).sum(-1, keepdim=True) for keys in seen.keys[1:]]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    out = weights[..., :length] @ seen.values[0]
    for step, values in enumerate(seen.values[1:]):
        out = out + weights[..., length + step, None] * values
    return out


class MidLayer(nn.Module):
    """The head's one decoder layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        D, epsilon = config.hidden_size, config.rms_norm_eps  # noqa: N806
        self.input_layernorm, self.hidden_norm = RMSNorm(D, epsilon), RMSNorm(D, epsilon)
        self.self_attn = HeadAttention(config)
        self.post_attention_layernorm = RMSNorm(D, epsilon)
        self.mlp = MLP(D, config.intermediate_size)

    def forward(self, token: Tensor, feature: Tensor, positions: Tensor, seen: Seen) -> Tensor:
        both = torch.cat((self.input_layernorm(token), self.hidden_norm(feature)), dim=-1)
        x = feature + self.self_attn(both, positions, seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class HeadNetwork(nn.Module):
    """Hidden vectors of the target and the tokens after them, to logits over the draft vocabulary."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = linear(config.num_feature_layers * config.hidden_size, config.hidden_size)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def forward(self, tapped: Tensor, embedded: Tensor, num_steps: int) -> list[Tensor]:
        """Runs steps on its own outputs: tapped [N, L, 3 D], embedded [N, L, D] -> [N, L, draft V] each.

        The last rows of each step, whose tokens lie behind the end, mean nothing.
        """
        x, seen, logits = self.fc(tapped), Seen([], []), []
        positions = torch.arange(embedded.shape[1])
        for step in range(num_steps):
            token = F.pad(embedded[:, step + 1 :], (0, 0, 0, step + 1))
            x = self.midlayer(token, x, positions + step, seen)
            logits.append(self.lm_head(self.norm(x)))
        return logits
