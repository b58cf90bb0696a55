"""One use of every kernel, computed by any backend from the same numbers."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks import published
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.weights import STORAGES, random_weight
from outrider.kernels.interface import Angles, AttentionShape, Choice, Kernels, LatentNorm, Place
from outrider.kernels.weights import FP8_BLOCK
from outrider.model.batch import Span
from outrider.model.transfer import to_device

Check = Callable[[Bench, Kernels], Tensor]
"""Computes a kernel's result in the bench's type."""

NUM_ROWS = 37
BLOCK_SIZE = 16
# Rows and context of sequences: one token, a few, a chunk, ends at and beside the ends of splits.
SPANS = ((1, 1), (3, 200), (1, 128), (30, 30), (1, 129), (8, 700))
TINY_SPANS = ((1, 1), (3, 40), (1, 129))


def linear(bench: Bench, kernels: Kernels, storage: str) -> Tensor:
    """The product into the latents."""
    attention = published.latent(bench.model)
    N, K = attention.kv_width + (attention.query_rank or 0), bench.model.hidden_size
    x = _input(bench, kernels, storage, K)
    return kernels.linear(x, kernels.pack_linear(random_weight(bench, storage, N, K, seed=1)))


def head_linear(bench: Bench, kernels: Kernels) -> Tensor:
    """The queries' way into the latent space."""
    attention = published.latent(bench.model)
    H, K, N = attention.num_heads, attention.plain_width, attention.latent_width
    weight = bench.normal(H, K, N, seed=1) / 8
    return kernels.head_linear(bench.normal(NUM_ROWS, H, K), kernels.pack_head_linear(weight))


def rms_norm(bench: Bench, kernels: Kernels) -> Tensor:
    """The norm of a layer."""
    D = bench.model.hidden_size
    return kernels.rms_norm(bench.normal(NUM_ROWS, D), _norm_weight(bench, D), 1e-6)


def add_rms_norm(bench: Bench, kernels: Kernels) -> Tensor:
    """The same after an addition."""
    x, addend = (
        bench.normal(NUM_ROWS, bench.model.hidden_size),
        bench.normal(NUM_ROWS, bench.model.hidden_size, seed=1),
    )
    return torch.cat(kernels.add_rms_norm(x, addend, _norm_weight(bench, x.shape[1]), 1e-6))


def silu_product(bench: Bench, kernels: Kernels) -> Tensor:
    """The activation of a dense block."""
    return kernels.silu_product(bench.normal(NUM_ROWS, 2 * bench.model.dense_hidden_size))


def rotate(bench: Bench, kernels: Kernels) -> Tensor:
    """The turning of heads."""
    attention = published.latent(bench.model)
    x = bench.normal(NUM_ROWS, attention.num_heads, attention.rotary_width)
    return kernels.rotate(x, _angles(bench, attention.rotary_width))


def write_latent(bench: Bench, kernels: Kernels) -> Tensor:
    """Norm, rotary and cache write: the cache and the turned queries."""
    attention = published.latent(bench.model)
    P, C = attention.rotary_width, attention.latent_width
    cache = torch.zeros(2 * NUM_ROWS, C + P, dtype=bench.dtype, device=bench.device)
    slots = torch.randperm(2 * NUM_ROWS, generator=torch.Generator().manual_seed(1))[:NUM_ROWS]
    place = Place(cache=cache, slots=slots.to(bench.device), angles=_angles(bench, P))
    norm = LatentNorm(weight=_norm_weight(bench, C), epsilon=1e-6)
    query = bench.normal(NUM_ROWS, attention.num_heads, P, seed=2)
    turned = kernels.write_latent(bench.normal(NUM_ROWS, C + P), query, norm, place)
    return torch.cat([cache.flatten(), turned.flatten()])


def latent_attention(bench: Bench, kernels: Kernels, num_ranks: int) -> Tensor:
    """Sequences of every kind at once, for the heads of one of some ranks."""
    attention = published.latent(bench.model)
    num_heads = attention.num_heads // num_ranks
    C, P = attention.latent_width, attention.rotary_width
    shape = AttentionShape(num_queries_per_key=num_heads, num_key_heads=1, key_width=C + P, value_width=C)
    spans, positions, num_slots = _spans(bench)
    T = len(positions)
    cache = bench.normal(num_slots, C + P, seed=3)
    latent, turned = bench.normal(T, num_heads, C), bench.normal(T, num_heads, P, seed=1)
    scale = bench.model.softmax_scale
    if _is_plain(bench, kernels):
        keys = cache[:, None].expand(-1, num_heads, -1)
        return _plain_attention(torch.cat([latent, turned], 2), keys, keys[..., :C], spans, scale)
    plan = to_device(kernels.plan_attention(spans, positions, BLOCK_SIZE, shape), bench.device)
    return kernels.latent_attention(latent, turned, cache, plan, scale)


def grouped_attention(bench: Bench, kernels: Kernels) -> Tensor:
    """The other kind of attention: eight query heads to a key."""
    G, P = 2, published.latent(bench.model).rotary_width
    shape = AttentionShape(num_queries_per_key=8, num_key_heads=G, key_width=P, value_width=P)
    spans, positions, num_slots = _spans(bench)
    cache, query = bench.normal(num_slots, 2 * G * P, seed=3), bench.normal(len(positions), 8 * G, P)
    if _is_plain(bench, kernels):
        keys, values = cache.view(-1, 2, G, P).repeat_interleave(8, dim=2).unbind(1)
        return _plain_attention(query, keys, values, spans, P**-0.5)
    plan = to_device(kernels.plan_attention(spans, positions, BLOCK_SIZE, shape), bench.device)
    return kernels.grouped_attention(query, cache, plan, P**-0.5)


def experts(bench: Bench, kernels: Kernels, storage: str) -> Tensor:
    """Sixteen experts, their outputs added; some of them idle."""
    D, F, E = bench.model.hidden_size, bench.moe.expert_hidden_size, min(16, bench.moe.num_experts)
    packed = kernels.pack_experts(
        [random_weight(bench, storage, 2 * F, D, seed=expert) for expert in range(E)],
        [random_weight(bench, storage, D, F, seed=E + expert) for expert in range(E)],
    )
    scores = bench.normal(NUM_ROWS, E - 1, seed=3, dtype=torch.float32)
    best = scores.topk(bench.moe.num_experts_per_token, dim=1)
    choice = Choice(experts=best.indices, weights=best.values.softmax(1))
    outputs = kernels.experts(_input(bench, kernels, storage, D), choice, packed)
    return kernels.combine(outputs, choice, bench.normal(NUM_ROWS, D, seed=4))


def _input(bench: Bench, kernels: Kernels, storage: str, width: int) -> Tensor:
    """Rows; where torch stands in for FP8 products, rounded as these round them."""
    x = bench.normal(NUM_ROWS, width)
    if storage != "fp8" or not _is_plain(bench, kernels):
        return x
    blocks = x.float().unflatten(1, (-1, min(FP8_BLOCK, width)))
    scales = blocks.abs().amax(2, keepdim=True) / 448
    return ((blocks / scales).to(torch.float8_e4m3fn).float() * scales).flatten(1).to(x.dtype)


def _is_plain(bench: Bench, kernels: Kernels) -> bool:
    """Whether torch is to show what rounding to the kernel's types costs, instead of the exact result."""
    return kernels is not bench.kernels and bench.dtype == bench.precision


def _plain_attention(query: Tensor, keys: Tensor, values: Tensor, spans: list[Span], scale: float) -> Tensor:
    """Softmax attention in the type of its inputs: [T, H, K] over [slots, H, K] and [slots, H, N]."""
    outputs = []
    for span in spans:
        blocks = torch.as_tensor(span.block_ids, device=query.device)
        slots = (blocks[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=query.device)).flatten()
        slots = slots[: span.num_context]
        rows = query[span.first_row : span.first_row + span.num_rows]
        scores = torch.einsum("thk,nhk->htn", rows, keys[slots]) * scale
        first = span.num_context - span.num_rows
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(first + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("htn,nhw->thw", weights, values[slots]))
    return torch.cat(outputs)


def _norm_weight(bench: Bench, width: int) -> Tensor:
    return 1 + bench.normal(width, seed=5, dtype=torch.float32) / 8


def _angles(bench: Bench, width: int) -> Angles:
    angles = bench.normal(NUM_ROWS, width // 2, seed=6, dtype=torch.float32)
    return Angles(cos=angles.cos(), sin=angles.sin(), interleaved=True)


def _spans(bench: Bench) -> tuple[list[Span], Tensor, int]:
    """Sequences whose blocks lie in no order; the positions of their rows, and how many slots there are."""
    kinds = TINY_SPANS if bench.is_tiny else SPANS
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in kinds]
    order = torch.randperm(sum(num_blocks), generator=torch.Generator().manual_seed(7)).split(num_blocks)
    spans, positions, first_row = [], [], 0
    for (num_rows, context), block_ids in zip(kinds, order, strict=True):
        spans.append(
            Span(first_row=first_row, num_rows=num_rows, num_context=context, block_ids=block_ids.tolist())
        )
        positions.append(torch.arange(context - num_rows, context))
        first_row += num_rows
    return spans, torch.cat(positions), sum(num_blocks) * BLOCK_SIZE


CHECKS: Mapping[str, Check] = {
    **{f"linear, {storage}": partial(linear, storage=storage) for storage in ("bf16", "fp8")},
    "head_linear": head_linear,
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "silu_product": silu_product,
    "rotate": rotate,
    "write_latent": write_latent,
    **{f"latent_attention, 1 of {n} ranks": partial(latent_attention, num_ranks=n) for n in (1, 8)},
    "grouped_attention": grouped_attention,
    **{f"experts and combine, {storage}": partial(experts, storage=storage) for storage in STORAGES},
}
