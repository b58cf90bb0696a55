"""Attention over a paged cache by torch's fused kernel: spans of like size side by side, the rest padded."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.model.batch import Span

# Contexts below are padded to the longest of them; longer ones at most to twice their length.
SHORT_CONTEXT = 512


@dataclass(frozen=True, kw_only=True)
class SpanGroup:
    """B spans of R rows each, over contexts padded to L tokens; n query heads share a key."""

    rows: Tensor  # [B * R] their rows in the batch
    blocks: Tensor  # [B * L / block_size]
    num_spans: int
    seen: Tensor  # [B, 1, R * n, L] False where a token lies after the row's position


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """The whole step's attention."""

    groups: list[SpanGroup]
    shape: AttentionShape
    block_size: int


def plan_attention(
    spans: Sequence[Span], positions: Tensor, block_size: int, shape: AttentionShape
) -> AttentionPlan:
    """Lay out the attention of a step once for all layers."""
    ordered = sorted(spans, key=size_class)
    groups = [
        make_group(list(group), positions, block_size, shape) for _, group in groupby(ordered, key=size_class)
    ]
    return AttentionPlan(groups=groups, shape=shape, block_size=block_size)


def size_class(span: Span) -> tuple[int, int]:
    """Number of rows, and number of bits of the context."""
    return span.num_rows, max(span.num_context, SHORT_CONTEXT - 1).bit_length()


def make_group(spans: list[Span], positions: Tensor, block_size: int, shape: AttentionShape) -> SpanGroup:
    """Spell out a group's indices; past a context any block, all of it hidden."""
    firsts = torch.tensor([span.first_row for span in spans])
    rows = firsts[:, None] + torch.arange(spans[0].num_rows)  # [B, R]
    blocks = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(s.block_ids) for s in spans], batch_first=True)
    tokens = torch.arange(blocks.shape[1] * block_size)
    seen = tokens <= positions[rows][..., None]  # [B, R, L]
    return SpanGroup(
        rows=rows.flatten(),
        blocks=blocks.flatten(),
        num_spans=len(spans),
        seen=seen.repeat_interleave(shape.num_queries_per_key, dim=1)[:, None],
    )


def latent_attention(
    latent: Tensor, turned: Tensor, cache: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """Absorbed MLA: queries [T, H, C] and [T, H, P] over cache rows [slots, C + P] -> [T, H, C]."""
    query = torch.cat([latent, turned], dim=2)
    mixed = query.new_empty(*query.shape[:2], plan.shape.value_width)
    for group in plan.groups:
        keys = gather(cache, group, plan.block_size)[:, None]  # [B, 1, L, C + P]
        attend(query, keys, keys[..., : plan.shape.value_width], group, scale, mixed)
    return mixed


def grouped_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
    G, P = plan.shape.num_key_heads, plan.shape.key_width
    mixed = torch.empty_like(query)
    for group in plan.groups:
        both = gather(cache, group, plan.block_size).unflatten(2, (2, G, P))
        keys, values = both.permute(2, 0, 3, 1, 4).unbind()  # [B, G, L, P]
        attend(query, keys, values, group, scale, mixed)
    return mixed


def gather(cache: Tensor, group: SpanGroup, block_size: int) -> Tensor:
    """The tokens of every context: [slots, width] -> [B, L, width]."""
    blocks = cache.view(-1, block_size * cache.shape[1]).index_select(0, group.blocks)
    return blocks.view(group.num_spans, -1, cache.shape[1])


def attend(
    query: Tensor, keys: Tensor, values: Tensor, group: SpanGroup, scale: float, mixed: Tensor
) -> None:
    """Queries of a group over keys [B, G, L, K] and values [B, G, L, N]; writes its rows of [T, H, N]."""
    B, G = keys.shape[:2]
    heads = query.index_select(0, group.rows).view(B, -1, G, query.shape[1] // G, query.shape[2])
    rows = heads.transpose(1, 2).flatten(2, 3)  # [B, G, R * n, K]
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=group.seen, scale=scale)
    out = out.unflatten(2, heads.shape[1:4:2]).transpose(1, 2)  # [B, R, G, n, N]
    mixed.index_copy_(0, group.rows, out.reshape(len(group.rows), *mixed.shape[1:]))
