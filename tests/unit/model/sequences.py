"""Drives a model as the worker does: sequences with scattered blocks, and steps of any mix of them."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.graphs import Bucket, StepRunner
from outrider.model.kv_cache import KVCache
from outrider.model.transformer import Transformer

BLOCK_SIZE = 16


@dataclass
class Sequence:
    """Token ids, how many of them are in the cache, and the blocks they lie in."""

    token_ids: list[int]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class Driver:
    """A model with a cache whose blocks are handed out in random order; its steps go through the buckets."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int = 256,
        seed: int = 0,
        buckets: Iterable[Bucket] = (),
        tap_layers: tuple[int, ...] = (),
    ) -> None:
        # The last block is the buckets' own.
        self.cache: KVCache = model.new_kv_cache(num_blocks + 1, BLOCK_SIZE)
        self.runner = StepRunner(
            model, self.cache, buckets, max_model_len=num_blocks * BLOCK_SIZE, tap_layers=tap_layers
        )
        self.num_recorded: list[tuple[int, int]] = []
        self.runner.record(lambda *numbers: self.num_recorded.append(numbers))
        self.num_distinct_experts: list[int] = []
        self.tapped: Tensor | None = None
        self._tap_layers = tap_layers
        self._free = random.Random(seed).sample(range(num_blocks), num_blocks)

    def step(self, work: list[tuple[Sequence, int]]) -> list[Tensor]:
        """Compute the next so many tokens of each sequence; the logits of all their rows."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for sequence, num_rows in work:
            end = sequence.num_computed + num_rows
            while len(sequence.block_ids) * BLOCK_SIZE < end:
                sequence.block_ids.append(self._free.pop())
            new = range(sequence.num_computed, end)
            block_ids = list(sequence.block_ids)
            spans.append(
                Span(first_row=len(token_ids), num_rows=num_rows, num_context=end, block_ids=block_ids)
            )
            token_ids += sequence.token_ids[new.start : end]
            positions += new
            slots += [block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in new]
            sequence.num_computed = end
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            spans=tuple(spans),
            logit_rows=torch.arange(len(token_ids)),
            tap=Tap(rows=torch.arange(len(token_ids)), layers=self._tap_layers) if self._tap_layers else None,
        )
        result = self.runner.forward(batch)
        self.tapped = None if result.tapped is None else result.tapped.clone()
        counts = result.num_distinct_experts
        self.num_distinct_experts = counts.tolist() if counts is not None else []
        return list(result.logits.clone().split([num_rows for _, num_rows in work]))

    def logits(self, token_ids: list[int], chunks: list[int] | None = None) -> Tensor:
        """All logits of one sequence computed alone, in chunks or in one piece."""
        sequence = Sequence(token_ids)
        parts = [self.step([(sequence, n)])[0] for n in chunks or [len(token_ids)]]
        return torch.cat(parts)
