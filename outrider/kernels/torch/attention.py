"""Attention over a paged cache, one form for prompts, decoding and verification.

Every row is a softmax over splits of a fixed number of tokens: a product per split, the maximum over all of
them, and sums taken split after split. A row's arithmetic is therefore given by its position; what lies after it
adds exact zeros. Inside everything is fp32; only the result is rounded to the model's type.
"""

import torch
from torch import Tensor

from outrider.kernels.torch.attention_plan import AttentionPlan, TileGroup
from outrider.kernels.torch.linear import TILE_ROWS


def latent_attention(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, latent_width: int
) -> Tensor:
    """Absorbed MLA: queries [T, H, C + P] over cache rows [slots, C + P] -> mixed latents [T, H, C].

    All heads share one key, the cached row; its first C elements are also the value.
    """
    T, H, _ = query.shape
    keys = cache[:, None]
    return attend(query.flatten(0, 1)[:, None], keys, keys[..., :latent_width], plan, scale).view(
        T, H, latent_width
    )


def grouped_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
    T, H, P = query.shape
    G = H // plan.num_queries_per_key
    keys, values = cache.view(cache.shape[0], 2, G, P).unbind(1)
    rows = query.view(T, G, plan.num_queries_per_key, P).transpose(1, 2).flatten(0, 1)
    mixed = attend(rows, keys, values, plan, scale)
    return mixed.view(T, plan.num_queries_per_key, G, P).transpose(1, 2).reshape(T, H, P)


def attend(rows: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Rows [T * H / G, G, K] over keys [slots, G, K] and values [slots, G, N] -> [T * H / G, G, N]."""
    mixed = rows.new_empty(rows.shape[0], values.shape[1], values.shape[2])
    for group in plan.groups:
        # Short tiles repeat their last row: it is written several times, with the same bits.
        mixed[group.rows] = attend_group(rows[group.rows].float() * scale, keys, values, group).to(rows.dtype)
    return mixed


def attend_group(query: Tensor, keys: Tensor, values: Tensor, group: TileGroup) -> Tensor:
    """Scaled queries [L, TILE_ROWS, G, K] -> [L, TILE_ROWS, G, N]; W pieces, one batched product each way."""
    L, _, G, _ = query.shape
    W = len(group.piece_tiles)
    piece_query = query[group.piece_tiles].transpose(1, 2)  # [W, G, rows, K]
    piece_keys = keys[group.piece_slots].float().permute(0, 2, 3, 1)  # [W, G, K, S]
    piece_values = values[group.piece_slots].float().transpose(1, 2)  # [W, G, S, N]

    scores = torch.bmm(piece_query.flatten(0, 1), piece_keys.flatten(0, 1)).unflatten(0, (W, G))
    scores = scores.masked_fill(group.hidden[:, None], -torch.inf)
    maxima = scores.new_full((L, len(group.split_sizes), G, TILE_ROWS), -torch.inf)
    maxima[group.piece_tiles, group.piece_splits] = scores.amax(-1)
    weights = torch.exp(scores - maxima.amax(1)[group.piece_tiles, ..., None])

    sums = add_splits(weights.sum(-1, keepdim=True), group)
    mixed = add_splits(
        torch.bmm(weights.flatten(0, 1), piece_values.flatten(0, 1)).unflatten(0, (W, G)), group
    )
    return (mixed / sums).transpose(1, 2)


def add_splits(pieces: Tensor, group: TileGroup) -> Tensor:
    """Add each tile's pieces in the order of its splits: [W, ...] -> [L, ...]."""
    first, *others = pieces.split(group.split_sizes)
    total = first.clone()
    for part in others:
        total[: len(part)] += part
    return total
