"""The DeepSeek-V3 network in the form that trains fastest on a CPU: packed rows, padded batches of expert rows.

Parameter names and shapes differ from the checkpoint's only where a layer's experts are stacked; export.py splits them.
Shapes: B rows, L positions, T = B * L tokens, D model, H heads, E experts, A experts per token, C rows per expert, F expert hidden.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

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


class RMSNorm(nn.Module):
    """Scales each row to unit mean square, then by a learnt weight; in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def linear(d_in: int, d_out: int) -> nn.Linear:
    """A matrix without bias, started small."""
    layer = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(layer.weight, std=d_in**-0.5 * 0.5)
    return layer


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates neighbouring pairs of the last dimension by the position's angles (interleaved RoPE). x: [B, h, L, rope]"""
    cos, sin = rotary
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


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

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        config, (rows, length, _) = self.config, x.shape
        heads = (rows, length, config.num_attention_heads, -1)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(heads).transpose(1, 2)  # [B, H, L, nope + rope]
        q_nope, q_rope = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((config.kv_lora_rank, config.qk_rope_head_dim), dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(heads).transpose(1, 2)
        k_nope, v = kv.split((config.qk_nope_head_dim, config.v_head_dim), dim=-1)
        k_rope = rotate(k_rope.unsqueeze(1), rotary).expand(-1, config.num_attention_heads, -1, -1)
        q = torch.cat((q_nope, rotate(q_rope, rotary)), dim=-1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        # The fast CPU kernel wants values as wide as keys.
        v = F.pad(v, (0, config.qk_head_dim - config.v_head_dim))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[..., : config.v_head_dim]
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    """A gated feed-forward block: the first layer's, and the shared expert."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(d_model, d_hidden), linear(d_model, d_hidden)
        self.down_proj = linear(d_hidden, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class GatherRows(torch.autograd.Function):
    """source[index], where `back` lists for each source row the outputs it went to: both ways are gathers, none scatters.

    Rows one past the end of a table read as zero.
    """

    @staticmethod
    def forward(ctx, source: Tensor, index: Tensor, back: Tensor) -> Tensor:  # source [N, D], back [N, K] -> [M, D]
        ctx.save_for_backward(back)
        return F.pad(source, (0, 0, 0, 1)).index_select(0, index)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        rows = F.pad(grad, (0, 0, 0, 1)).index_select(0, back.flatten())
        return rows.view(*back.shape, -1).sum(1) if back.shape[1] > 1 else rows, None, None


def pad_index(experts: Tensor, num_experts: int, is_real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gives every (token, choice) a place in a table of one equally long line per expert.

    experts [T, A] -> slot of each choice [T * A], choice in each slot [E * C] (T * A where empty), counts [E].
    """
    flat = torch.where(is_real[:, None], experts, num_experts).flatten()
    counts = torch.bincount(flat, minlength=num_experts + 1)[:num_experts]
    capacity = max(32, -(-int(counts.max()) // 32) * 32)
    order = flat.argsort(stable=True)
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    ranked = flat[order]
    slots_in_order = ranked * capacity + torch.arange(len(flat)) - starts[ranked]
    num_slots = num_experts * capacity
    slots_in_order = torch.where(ranked == num_experts, num_slots, slots_in_order)
    slot = torch.empty_like(flat).scatter_(0, order, slots_in_order)
    choice = torch.full((num_slots + 1,), len(flat)).scatter_(0, slots_in_order, order)[:num_slots]
    return slot, choice, counts


class Experts(nn.Module):
    """The routed experts, stacked, run as three batched products."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        num, d, f = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_proj = nn.Parameter(torch.randn(num, f, d) * d**-0.5 * 0.5)
        self.up_proj = nn.Parameter(torch.randn(num, f, d) * d**-0.5 * 0.5)
        self.down_proj = nn.Parameter(torch.randn(num, d, f) * f**-0.5 * 0.5)

    def forward(self, x: Tensor) -> Tensor:  # [E, C, D]
        gate, up = x @ self.gate_proj.mT, x @ self.up_proj.mT
        return (F.silu(gate) * up) @ self.down_proj.mT


class MoE(nn.Module):
    """The gate, the routed experts it picks, and the shared one. Balanced by the gate's bias alone, without a loss."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Parameter(torch.randn(config.n_routed_experts, config.hidden_size) * config.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))
        self.register_buffer("counts", torch.zeros(config.n_routed_experts), persistent=False)
        self.experts = Experts(config)
        self.shared_experts = MLP(config.hidden_size, config.moe_intermediate_size * config.n_shared_experts)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, [T, A] each; the bias picks but does not weigh."""
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x.float(), self.gate).sigmoid()
        experts = (scores + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, experts)
        return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.config.routed_scaling_factor

    def forward(self, x: Tensor, is_real: Tensor) -> Tensor:
        rows, (num_per_token, num_experts) = x.flatten(0, 1), (self.config.num_experts_per_tok, self.config.n_routed_experts)
        experts, weights = self.route(rows)
        slot, choice, counts = pad_index(experts, num_experts, is_real.flatten())
        if self.training:
            self.counts += counts
        token = choice // num_per_token
        rows16 = rows.to(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else rows.dtype)
        table = GatherRows.apply(rows16, token, slot.view(-1, num_per_token)).view(num_experts, -1, rows.shape[-1])
        out = self.experts(table).flatten(0, 1)
        picked = GatherRows.apply(out, slot, choice[:, None]).view(*weights.shape, -1)  # [T, A, D]
        routed = (picked * weights[..., None].to(picked.dtype)).sum(1)
        return (routed + self.shared_experts(rows)).view_as(x)

    @torch.no_grad()
    def balance(self, rate: float) -> float:
        """Moves the bias towards the experts that got too little; returns the largest load over the mean."""
        mean = self.counts.mean().clamp(min=1)
        load = float(self.counts.max() / mean)
        self.e_score_correction_bias += rate * (mean - self.counts).sign()
        self.counts.zero_()
        return load


class Layer(nn.Module):
    """Attention and feed-forward, each on a normed copy of the residual stream, which stays fp32."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        is_dense = index < config.first_k_dense_replace
        self.mlp = MLP(config.hidden_size, config.intermediate_size) if is_dense else MoE(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, is_real: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask)
        normed = self.post_attention_layernorm(x)
        return x + (self.mlp(normed, is_real) if isinstance(self.mlp, MoE) else self.mlp(normed))


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
        """Cosine and sine of each position's angles, [B, 1, L, rope / 2]."""
        size = self.config.qk_rope_head_dim
        frequencies = self.config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = positions[:, None, :, None].float() * frequencies
        return angles.cos(), angles.sin()

    def hidden(self, token_ids: Tensor, positions: Tensor, mask: Tensor, is_real: Tensor) -> Tensor:
        """The last hidden states, normed, [B, L, D]; `mask` [B, 1, L, L] is added to the scores."""
        x, rotary = self.embed_tokens(token_ids), self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotary, mask, is_real)
        return self.norm(x)

    def moe_blocks(self) -> list[MoE]:
        """The layers' gated blocks."""
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, MoE)]
