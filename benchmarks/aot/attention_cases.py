"""Launches of latent attention: one sequence's new tokens, or a chunk of its prompt."""

from collections.abc import Iterator

import torch

from benchmarks import published
from benchmarks.aot.case import Case, Setting, meta
from outrider.kernels.interface import AttentionShape
from outrider.model.batch import Span
from outrider.model.transfer import tensors_of, with_tensors

CONTEXT = 10_000
BLOCK_SIZE = 64


def attention_cases(setting: Setting) -> Iterator[Case]:
    """Yields the launches of one setting."""
    attention, T, H = published.latent(setting.config), setting.num_tokens, setting.num_heads
    C, P = attention.latent_width, attention.rotary_width
    shape = AttentionShape(num_queries_per_key=H, num_key_heads=1, key_width=C + P, value_width=C)
    num_blocks = -(-CONTEXT // BLOCK_SIZE)
    span = Span(first_row=0, num_rows=T, num_context=CONTEXT, block_ids=list(range(num_blocks)))
    positions = torch.arange(CONTEXT - T, CONTEXT)
    plan = setting.kernels.plan_attention([span], positions, BLOCK_SIZE, shape)
    plan = with_tensors(plan, [tensor.to("meta") for tensor in tensors_of(plan)])
    cache, scale = meta(num_blocks * BLOCK_SIZE, C + P), setting.config.softmax_scale
    yield from setting.cases(
        {"walk_latent_kernel": "mla", "latent_pieces_kernel": "mla", "combine_splits_kernel": "mla_combine"},
        lambda: setting.kernels.latent_attention(meta(T, H, C), meta(T, H, P), cache, plan, scale),
        products=("mla",),
        heads=H,
        context=CONTEXT,
    )
