"""Latent attention over a long context: new tokens of one sequence, all heads and one rank's eighth."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil

import torch
from torch import Tensor

from benchmarks import published
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.card import product_rate
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.stopwatch import Run, seconds
from outrider.kernels.interface import AttentionShape
from outrider.model.batch import Span
from outrider.model.transfer import to_device

PART = "attention"
BLOCK_SIZE = 64
NUM_NEW = (1, 4, 8)
LONGEST = 262_144
"""A captured step has room in its table for so many tokens, whatever its contexts are."""
LARGER_THAN_CACHE = 2**28
MOST_OF_ONE = 1.15
LEAST_OF_PRODUCT = 0.5


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields times by heads, context and new tokens."""
    rate = product_rate(bench)
    all_heads = published.latent(bench.model).num_heads
    contexts = bench.sizes((1_000, 10_000, 100_000), (20, 40))
    for num_heads in (all_heads // 8, all_heads):
        for context in contexts:
            times = {new: time_of(bench, num_heads, context, new) for new in NUM_NEW}
            for new, time in times.items():
                name = f"{num_heads} heads, {context} tokens, {new} new"
                yield Finding(part=PART, name=name, value=1e6 * time, unit="us")
            is_target = context == contexts[1]
            if is_target and num_heads < all_heads:
                ratio = times[8] / times[1]
                name = f"{num_heads} heads, {context} tokens: 8 new by 1"
                yield Finding.at_most(PART, name, ratio, "", MOST_OF_ONE)
            if is_target and num_heads == all_heads:
                part = operations(bench, num_heads, context, 8) / times[8] / rate
                name = f"{num_heads} heads, {context} tokens, 8 new: part of the product's rate"
                yield Finding.at_least(PART, name, part, "", LEAST_OF_PRODUCT)
        longest = bench.sizes((LONGEST,), (512,))[0]
        yield Finding(
            part=PART,
            name=f"{num_heads} heads, {contexts[1]} tokens, 8 new, room for {longest}",
            value=1e6 * time_of(bench, num_heads, contexts[1], 8, num_blocks=longest // BLOCK_SIZE),
            unit="us",
        )
        eager = seconds(eager_runs(bench, num_heads, contexts[1]), bench.device)
        yield Finding(
            part=PART,
            name=f"{num_heads} heads, {contexts[1]} tokens, 8 new: torch",
            value=1e6 * eager,
            unit="us",
        )


def operations(bench: Bench, num_heads: int, context: int, num_new: int) -> float:
    """Returns the multiplications and additions of scores and values."""
    attention = published.latent(bench.model)
    return 2.0 * num_new * num_heads * context * (attention.kv_width + attention.latent_width)


def time_of(bench: Bench, num_heads: int, context: int, num_new: int, num_blocks: int = 0) -> float:
    """Returns the median time of one sequence's attention."""
    return seconds(runs(bench, num_heads, context, num_new, num_blocks), bench.device)


def runs(bench: Bench, num_heads: int, context: int, num_new: int, num_blocks: int) -> Sequence[Run]:
    """Returns calls on several sequences whose blocks lie in no order, with tables of at least num_blocks."""
    attention = published.latent(bench.model)
    C, P, scale = attention.latent_width, attention.rotary_width, bench.model.softmax_scale
    cache, sequences = scattered(bench, context)
    shape = AttentionShape(num_queries_per_key=num_heads, num_key_heads=1, key_width=C + P, value_width=C)
    positions = torch.arange(context - num_new, context)
    calls: list[Run] = []
    for number, block_ids in enumerate(sequences):
        table = block_ids + [0] * (num_blocks - len(block_ids))
        span = Span(first_row=0, num_rows=num_new, num_context=context, block_ids=table)
        plan = to_device(bench.kernels.plan_attention([span], positions, BLOCK_SIZE, shape), bench.device)
        latent = bench.normal(num_new, num_heads, C, seed=number)
        turned = bench.normal(num_new, num_heads, P, seed=number)
        calls.append(partial(bench.kernels.latent_attention, latent, turned, cache, plan, scale))
    return calls


def scattered(bench: Bench, context: int) -> tuple[Tensor, list[list[int]]]:
    """Returns a cache larger than the card's last cache, and the blocks of the sequences that fill it."""
    width = published.latent(bench.model).kv_width
    num_blocks = ceil(context / BLOCK_SIZE)
    num_bytes = num_blocks * BLOCK_SIZE * width * bench.dtype.itemsize
    num_sequences = 2 if bench.is_tiny else max(2, ceil(LARGER_THAN_CACHE / num_bytes))
    order = torch.randperm(num_sequences * num_blocks, generator=torch.Generator().manual_seed(3))
    cache = bench.normal(len(order) * BLOCK_SIZE, width, seed=4)
    return cache, order.view(num_sequences, num_blocks).tolist()


def eager_runs(bench: Bench, num_heads: int, context: int) -> Sequence[Run]:
    """Returns the same in torch for 8 new tokens: blocks gathered, two products and a softmax."""
    attention = published.latent(bench.model)
    cache, sequences = scattered(bench, context)
    blocks = cache.view(-1, BLOCK_SIZE * attention.kv_width)
    query = bench.normal(num_heads * 8, attention.kv_width)
    hidden = torch.arange(context, device=bench.device) > torch.arange(
        context - 8, context, device=bench.device
    ).repeat_interleave(num_heads).unsqueeze(1)

    def attend(block_ids: Tensor) -> Tensor:
        keys = blocks.index_select(0, block_ids).view(-1, attention.kv_width)[:context]
        scores = (query @ keys.t()).mul_(bench.model.softmax_scale).masked_fill_(hidden, -torch.inf)
        return scores.softmax(-1) @ keys[:, : attention.latent_width]

    return [partial(attend, torch.tensor(ids, device=bench.device)) for ids in sequences]
