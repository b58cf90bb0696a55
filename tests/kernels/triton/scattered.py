"""Sequences whose blocks lie in no order in a cache, and plain attention over them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.triton.launch import Launch
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


def run_all(launches: Callable[..., Iterable[Launch]], *arguments: object, mixed: Tensor) -> Tensor:
    """The result of launches that write it into `mixed`."""
    for launch in launches(*arguments, mixed):
        launch.run()
    return mixed


def plain_attention(query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Softmax attention of one sequence: [T, H, K] over [N, H, K] and [N, H, W]."""
    scores = torch.einsum("thk,nhk->htn", query, keys) * scale
    scores = scores.masked_fill(torch.arange(len(keys)) > positions[:, None], -torch.inf)
    return torch.einsum("htn,nhw->thw", scores.softmax(-1), values)


def assert_close_as_plain(result: Tensor, plain: Tensor, exact: Tensor) -> None:
    """The error is at most twice the plain formula's, but for half a unit in the last place of the result."""
    assert result.dtype == plain.dtype
    assert result.shape == exact.shape
    ulp = exact.abs() * torch.finfo(result.dtype).eps
    error = (result.double() - exact).abs() - ulp / 2
    assert error.max() <= 2 * (plain.double() - exact).abs().max()
