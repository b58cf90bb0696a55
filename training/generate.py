"""Greedy generation for many prompts at once, in the plainest form that is fast enough to mark the model.

One rule serves prompt and answer: each step feeds every sequence its next known token, and a sequence that
has no more known tokens takes the likeliest one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.network import Attention, MoE, Network

# Finished rows are dropped once this share is left: dropping copies the caches.
KEPT_SHARE = 0.8


class Cache:
    """Keys and values of one layer, [B, H, L, head] each, written at each sequence's position."""

    def __init__(self, num_rows: int, length: int, attention: Attention) -> None:
        config = attention.config
        self.k = torch.zeros(num_rows, config.num_attention_heads, length, config.qk_head_dim)
        self.v = torch.zeros(num_rows, config.num_attention_heads, length, config.v_head_dim)

    def keep(self, rows: list[int]) -> None:
        """Drops all other rows."""
        self.k, self.v = self.k[rows], self.v[rows]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, position: int) -> Tensor:
        """Stores one token's keys and values per row, then attends to all so far. All are [B, H, head]."""
        self.k[:, :, position], self.v[:, :, position] = k, v
        keys, values = self.k[:, :, : position + 1], self.v[:, :, : position + 1]
        return F.scaled_dot_product_attention(q.unsqueeze(2), keys, values).squeeze(2)


def step(network: Network, caches: list[Cache], token_ids: Tensor, position: int) -> Tensor:
    """The logits that follow one token per row, [B, V]."""
    x = network.embed_tokens(token_ids)
    rotary = network.rotary(torch.full_like(token_ids, position))
    for layer, cache in zip(network.stack(), caches, strict=True):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), rotary)
        x = x + layer.self_attn.o_proj(cache.attend(q, k, v, position).flatten(1))
        normed = layer.post_attention_layernorm(x)
        x = x + (layer.mlp(normed)[0] if isinstance(layer.mlp, MoE) else layer.mlp(normed))
    return network.lm_head(network.norm(x))


@torch.inference_mode()
def generate(
    network: Network, prompts: list[list[int]], stop_id: int, max_num_tokens: int
) -> list[list[int]]:
    """The tokens that follow each prompt, up to and without the stop token, at most so many."""
    rows = [list(prompt) for prompt in prompts]
    ends = [len(prompt) + max_num_tokens for prompt in prompts]
    caches = [Cache(len(rows), max(ends), layer.self_attn) for layer in network.stack()]
    running = list(range(len(rows)))
    for position in range(max(ends) - 1):
        fed = [rows[i][position] if position < len(rows[i]) else stop_id for i in running]
        chosen = step(network, caches, torch.tensor(fed), position).argmax(-1).tolist()
        for i, token_id in zip(running, chosen, strict=True):
            if position == len(rows[i]) - 1 and rows[i][-1] != stop_id:
                rows[i].append(token_id)
        kept = [at for at, i in enumerate(running) if rows[i][-1] != stop_id and len(rows[i]) < ends[i]]
        if not kept:
            break
        if len(kept) < KEPT_SHARE * len(running):
            running = [running[at] for at in kept]
            for cache in caches:
                cache.keep(kept)
    outputs = [row[len(prompt) : end] for row, prompt, end in zip(rows, prompts, ends, strict=True)]
    return [output[:-1] if output[-1] == stop_id else output for output in outputs]
