"""Sequences whose blocks lie in no order in a cache."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.model.batch import Span

NUM_BLOCKS = 120
BLOCK_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """Sequences of (new rows, tokens in the cache with them) whose blocks are drawn from the cache."""

    sizes: tuple[tuple[int, int], ...]
    seed: int = 3

    @property
    def num_rows(self) -> int:
        return sum(num_rows for num_rows, _ in self.sizes)

    @property
    def positions(self) -> Tensor:
        parts = [torch.arange(context - rows, context) for rows, context in self.sizes]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])

    @property
    def spans(self) -> list[Span]:
        free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(self.seed)).tolist()
        spans, first_row = [], 0
        for rows, context in self.sizes:
            block_ids = [free.pop() for _ in range(math.ceil(context / BLOCK_SIZE))]
            spans.append(Span(first_row=first_row, num_rows=rows, num_context=context, block_ids=block_ids))
            first_row += rows
        return spans

    def cache(self, contexts: Iterable[Tensor]) -> Tensor:
        """All contexts [tokens, width] in their blocks, and large numbers wherever none is."""
        contexts = list(contexts)
        cache = torch.full((NUM_BLOCKS, BLOCK_SIZE, contexts[0].shape[1]), 3e4, dtype=contexts[0].dtype)
        for span, context in zip(self.spans, contexts, strict=True):
            for block, tokens in zip(span.block_ids, context.split(BLOCK_SIZE), strict=False):
                cache[int(block), : len(tokens)] = tokens
        return cache.flatten(0, 1)
