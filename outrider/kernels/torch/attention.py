"""Attention over a paged cache, one form for prompts, decoding and verification.

Every row is a softmax over splits of a fixed number of tokens: a product per split, the maximum over all of
them, and sums taken split after split. A row's arithmetic is thus given by its position; what lies after it
adds exact zeros. Inside everything is fp32; only the result is rounded to the model's type.
"""

import torch
from torch import Tensor

from outrider.kernels.torch.attention_plan import SPLIT_TOKENS, AttentionPlan, TileGroup


def latent_attention(
    latent: Tensor, turned: Tensor, cache: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """Absorbed MLA: queries [T, H, C] and [T, H, P] over cache rows [slots, C + P] -> [T, H, C].

    All heads share one key, the cached row; its first C elements are also the value.
    """
    query = torch.cat([latent, turned], dim=2)
    T, H, _ = query.shape
    rows = query.flatten(0, 1)[:, None].float() * scale
    mixed = query.new_empty(T * H, 1, plan.shape.value_width)
    for group in plan.groups:
        keys = gather(cache, group, plan.block_size)  # [W, S, C + P]
        values = keys[..., : plan.shape.value_width]
        attend(rows, keys.transpose(1, 2), values, group, mixed)
    return mixed.view(T, H, -1)


def grouped_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
    G, P = plan.shape.num_key_heads, plan.shape.key_width
    rows = query.unflatten(1, (G, -1)).transpose(1, 2).flatten(0, 1).float() * scale  # [T * H / G, G, P]
    mixed = torch.empty_like(rows, dtype=query.dtype)
    for group in plan.groups:
        both = gather(cache, group, plan.block_size).unflatten(2, (2, G, P)).transpose(1, 3)
        keys, values = both[:, :, 0], both[:, :, 1]  # [W, G, S, P]
        attend(rows, keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1), group, mixed)
    return mixed.unflatten(0, (query.shape[0], -1)).transpose(1, 2).reshape(query.shape)


def gather(cache: Tensor, group: TileGroup, block_size: int) -> Tensor:
    """The tokens of every piece: [slots, width] -> [W, S, width] fp32."""
    blocks = cache.view(-1, block_size * cache.shape[1])
    return blocks.index_select(0, group.piece_blocks).view(-1, SPLIT_TOKENS, cache.shape[1]).float()


def attend(rows: Tensor, keys: Tensor, values: Tensor, group: TileGroup, mixed: Tensor) -> None:
    """Scaled rows [.., G, K] over keys [W * G, K, S] and values [W * G, S, N]; writes mixed [.., G, N]."""
    W, G = len(group.piece_tiles), rows.shape[1]
    query = rows.index_select(0, group.rows).unflatten(0, (group.num_tiles, -1)).transpose(1, 2)
    scores = torch.bmm(query.index_select(0, group.piece_tiles).flatten(0, 1), keys).unflatten(0, (W, G))
    scores.masked_fill_(group.hidden, -torch.inf)  # [W, G, M, S]
    maxima = scores.amax(-1, keepdim=True)
    weights = scores.sub_(whole_maxima(maxima, group)).exp_()
    sums = add_splits(weights.sum(-1, keepdim=True), group)
    total = add_splits(torch.bmm(weights.flatten(0, 1), values).unflatten(0, (W, G)), group)
    # A short tile repeats its last row: it is written several times, with the same bits.
    mixed.index_copy_(0, group.rows, (total / sums).transpose(1, 2).flatten(0, 1).to(mixed.dtype))


def whole_maxima(maxima: Tensor, group: TileGroup) -> Tensor:
    """Each piece's maxima replaced by its tile's over all splits: [W, ...] -> [W, ...]."""
    table = maxima.new_full((group.num_tiles, len(group.split_sizes), *maxima.shape[1:]), -torch.inf)
    table[group.piece_tiles, group.piece_splits] = maxima
    return table.amax(1).index_select(0, group.piece_tiles)


def add_splits(pieces: Tensor, group: TileGroup) -> Tensor:
    """Add each tile's pieces in the order of its splits: [W, ...] -> [L, ...]."""
    first, *others = pieces.split(group.split_sizes)
    total = first.clone()
    for part in others:
        total[: len(part)] += part
    return total
