"""The DeepSeek-V3 network in the form that trains fastest on a CPU without matrix units: fp32, no padding.

Names and shapes differ from the checkpoint's only where a layer's experts are stacked; export.py splits them.
Shapes: T tokens, D model, H heads, E experts, A experts per token, N = T * A rows of experts, F their hidden.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Sizes, under the names of a Hugging Face config.json."""

    vocab_size: int
    hidden_size: int = 192
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    intermediate_size: int = 512
    moe_intermediate_size: int = 96
    n_routed_experts: int = 32
    num_experts_per_tok: int = 4
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096

    @property
    def qk_head_dim(self) -> int:
        """Size of one head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def as_dict(self) -> dict[str, int | float]:
        """The fields, for config.json."""
        return asdict(self)


Block = tuple[int, int]
"""Rows of equal length that lie one after the other among the tokens: how many, how long."""


class RMSNorm(nn.Module):
    """Scales each row to unit mean square, then by a learnt weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A matrix without bias, started small."""
    layer = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(layer.weight, std=d_in**-0.5 * 0.5)
    return layer


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates neighbouring pairs of x [T, h, rope] by the position's angles: interleaved RoPE."""
    cos, sin = rotary
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: list[Block]) -> Tensor:
    """Causal attention within each row of each block; q, k, v and the result are [T, H, head]."""
    outs, start = [], 0
    for num_rows, length in blocks:
        end = start + num_rows * length
        rows = [t[start:end].unflatten(0, (num_rows, length)).transpose(1, 2) for t in (q, k, v)]
        out = F.scaled_dot_product_attention(rows[0], rows[1], rows[2], is_causal=True)
        outs.append(out.transpose(1, 2).flatten(0, 1))
        start = end
    return torch.cat(outs)


class Attention(nn.Module):
    """Multi-head latent attention, keys and values decompressed."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        heads, rank = config.num_attention_heads, config.kv_lora_rank
        self.q_a_proj = linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(rank, config.rms_norm_eps)
        self.kv_b_proj = linear(rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each token, [T, H, head] each."""
        config = self.config
        heads = (len(x), config.num_attention_heads, -1)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(heads)  # [T, H, nope + rope]
        q_nope, q_rope = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(
            (config.kv_lora_rank, config.qk_rope_head_dim), dim=-1
        )
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(heads)
        k_nope, v = kv.split((config.qk_nope_head_dim, config.v_head_dim), dim=-1)
        k_rope = rotate(k_rope.unsqueeze(1), rotary).expand(-1, config.num_attention_heads, -1)
        return torch.cat((q_nope, rotate(q_rope, rotary)), dim=-1), torch.cat((k_nope, k_rope), dim=-1), v

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], blocks: list[Block]) -> Tensor:
        q, k, v = self.project(x, rotary)
        # The fast CPU kernel wants values as wide as keys.
        v = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
        out = attend(q, k, v, blocks)[..., : self.config.v_head_dim]
        return self.o_proj(out.reshape(len(x), -1))


class MLP(nn.Module):
    """A gated feed-forward block: the first layer's, and the shared expert."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(d_model, d_hidden), linear(d_model, d_hidden)
        self.down_proj = linear(d_hidden, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Dispatch(torch.autograd.Function):
    """Copies each token's row to its places among the experts' rows; back, sums them: gathers both ways."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token: Tensor, place: Tensor
    ) -> Tensor:  # x [T, D], token [N], place [T, A] -> [N, D]
        ctx.save_for_backward(place)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (place,) = grad_outputs, ctx.saved_tensors
        return grad.index_select(0, place.flatten()).view(*place.shape, -1).sum(1), None, None


class Combine(torch.autograd.Function):
    """Sums each token's rows from among the experts' rows; back, copies: the mirror of Dispatch."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, token: Tensor, place: Tensor) -> Tensor:  # y [N, D] -> [T, D]
        ctx.save_for_backward(token)
        return y.index_select(0, place.flatten()).view(*place.shape, -1).sum(1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (token,) = grad_outputs, ctx.saved_tensors
        return grad.index_select(0, token), None, None


class GroupedLinear(torch.autograd.Function):
    """Multiplies the rows up to each bound by that expert's own matrix."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bounds: list[int]
    ) -> Tensor:  # x [N, K], weight [E, M, K] -> [N, M]
        ctx.save_for_backward(x, weight)
        ctx.bounds = bounds
        out = x.new_empty(len(x), weight.shape[1])
        for matrix, start, end in zip(weight, bounds, bounds[1:], strict=False):
            torch.mm(x[start:end], matrix.T, out=out[start:end])
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,), (x, weight) = grad_outputs, ctx.saved_tensors
        grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
        for i, (start, end) in enumerate(zip(ctx.bounds, ctx.bounds[1:], strict=False)):
            torch.mm(grad[start:end], weight[i], out=grad_x[start:end])
            torch.mm(grad[start:end].T, x[start:end], out=grad_weight[i])
        return grad_x, grad_weight, None


class Experts(nn.Module):
    """The routed experts, stacked; their rows come sorted by expert."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        num, d, f = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_proj = nn.Parameter(torch.randn(num, f, d) * d**-0.5 * 0.5)
        self.up_proj = nn.Parameter(torch.randn(num, f, d) * d**-0.5 * 0.5)
        self.down_proj = nn.Parameter(torch.randn(num, d, f) * f**-0.5 * 0.5)

    def forward(self, x: Tensor, weights: Tensor, bounds: list[int]) -> Tensor:  # x [N, D], weights [N]
        both = GroupedLinear.apply(x, torch.cat((self.gate_proj, self.up_proj), dim=1), bounds)
        gate, up = both.chunk(2, dim=-1)
        # The weight is taken in before the last product, where rows are half as wide.
        return GroupedLinear.apply(F.silu(gate) * up * weights[:, None], self.down_proj, bounds)


class MoE(nn.Module):
    """The gate, the routed experts it picks and the shared one; balanced by the gate's bias alone."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Parameter(
            torch.randn(config.n_routed_experts, config.hidden_size) * config.hidden_size**-0.5
        )
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))
        self.experts = Experts(config)
        self.shared_experts = MLP(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, [T, A] each; the bias picks but does not weigh."""
        scores = F.linear(x, self.gate).sigmoid()
        experts = (
            (scores + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, dim=-1).indices
        )
        weights = scores.gather(1, experts)
        return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.config.routed_scaling_factor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The block's output, and which experts each token went to."""
        experts, weights = self.route(x)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order))).view_as(experts)
        counts = torch.bincount(flat, minlength=self.config.n_routed_experts)
        bounds = [0, *counts.cumsum(0).tolist()]
        token = order // experts.shape[1]
        rows = self.experts(Dispatch.apply(x, token, place), weights.flatten()[order], bounds)
        return Combine.apply(rows, token, place) + self.shared_experts(x), experts

    @torch.no_grad()
    def balance(self, counts: Tensor, rate: float) -> float:
        """Moves the bias towards the experts that got too little; returns the largest load over the mean."""
        self.e_score_correction_bias += rate * (counts.float().mean() - counts).sign()
        return float(counts.max() / counts.float().mean())


class Layer(nn.Module):
    """Attention and feed-forward, each on a normed copy of the residual stream."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        is_dense = index < config.first_k_dense_replace
        self.mlp = MLP(config.hidden_size, config.intermediate_size) if is_dense else MoE(config)

    def forward(
        self, x: Tensor, rotary: tuple[Tensor, Tensor], blocks: list[Block]
    ) -> tuple[Tensor, Tensor | None]:
        x = x + self.self_attn(self.input_layernorm(x), rotary, blocks)
        normed = self.post_attention_layernorm(x)
        out, experts = self.mlp(normed) if isinstance(self.mlp, MoE) else (self.mlp(normed), None)
        return x + out, experts


class Network(nn.Module):
    """Token ids to hidden states to logits."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles, [T, 1, rope / 2]."""
        size = self.config.qk_rope_head_dim
        frequencies = self.config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = positions[:, None, None].float() * frequencies
        return angles.cos(), angles.sin()

    def forward(
        self, token_ids: Tensor, positions: Tensor, blocks: list[Block]
    ) -> tuple[Tensor, list[Tensor]]:
        """The last hidden states, normed, [T, D], and the experts each gated layer picked, [T, A]."""
        x, rotary, picked = self.embed_tokens(token_ids), self.rotary(positions), []
        for layer in self.stack():
            x, experts = layer(x, rotary, blocks)
            if experts is not None:
                picked.append(experts)
        return self.norm(x), picked

    def stack(self) -> list[Layer]:
        """The layers, from the first."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def moe_blocks(self) -> list[MoE]:
        """The layers' gated blocks."""
        return [layer.mlp for layer in self.stack() if isinstance(layer.mlp, MoE)]
