"""Attention over sequences whose blocks lie in no order: by the kernels, whatever their kind, and plainly."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.kernels.triton.attention_launches import Attention
from outrider.kernels.triton.attention_plan import AttentionPlan, plan_attention
from outrider.kernels.triton.grouped_attention import grouped_layer
from outrider.kernels.triton.latent_attention import latent_layer
from outrider.kernels.triton.launch import Launch
from tests.kernels.exactness import plain_attention
from tests.kernels.triton.scattered import BLOCK_SIZE, Scattered

SCALE = 0.2
EVERY_DTYPE = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"]
)
Form = Callable[[Attention], Iterable[Launch]]
EVERY_FORM = pytest.mark.parametrize(
    "form", [Attention.walked_launches, Attention.pieced_launches], ids=["walked", "pieced"]
)


class Kind(Protocol):
    """How heads, keys and values lie."""

    @property
    def query_width(self) -> int: ...

    @property
    def cached_width(self) -> int: ...

    def shape(self, num_heads: int) -> AttentionShape: ...

    def layer(self, query: Tensor, cache: Tensor, plan: AttentionPlan) -> Attention:
        """A layer that writes into room of its own."""
        ...

    def keys_and_values(self, context: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        """Each [tokens, H, width], of cached rows."""
        ...


@dataclass(frozen=True)
class Latent:
    """Queries [T, H, C + P], cached rows [slots, C + P]."""

    C: int = 24
    P: int = 8

    @property
    def query_width(self) -> int:
        return self.C + self.P

    @property
    def cached_width(self) -> int:
        return self.C + self.P

    def shape(self, num_heads: int) -> AttentionShape:
        return AttentionShape(
            num_queries_per_key=num_heads, num_key_heads=1, key_width=self.C + self.P, value_width=self.C
        )

    def layer(self, query: Tensor, cache: Tensor, plan: AttentionPlan) -> Attention:
        latent, turned = query.split([self.C, self.P], dim=2)
        return latent_layer(latent, turned, cache, plan, SCALE, torch.empty_like(latent.contiguous()))

    def keys_and_values(self, context: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        keys = context[:, None].expand(-1, num_heads, -1)
        return keys, keys[..., : self.C]


@dataclass(frozen=True)
class Grouped:
    """Queries [T, H, P], cached rows [slots, 2 G P]."""

    G: int = 2
    P: int = 16

    @property
    def query_width(self) -> int:
        return self.P

    @property
    def cached_width(self) -> int:
        return 2 * self.G * self.P

    def shape(self, num_heads: int) -> AttentionShape:
        return AttentionShape(
            num_queries_per_key=num_heads // self.G,
            num_key_heads=self.G,
            key_width=self.P,
            value_width=self.P,
        )

    def layer(self, query: Tensor, cache: Tensor, plan: AttentionPlan) -> Attention:
        return grouped_layer(query, cache, plan, SCALE, torch.empty_like(query))

    def keys_and_values(self, context: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        halves = context.view(-1, 2, self.G, self.P).repeat_interleave(num_heads // self.G, dim=2)
        return halves[:, 0], halves[:, 1]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences of some tokens each: queries of the new ones, cached rows of all."""

    kind: Kind
    sizes: tuple[tuple[int, int], ...]
    queries: list[Tensor]  # each [rows, H, query width]
    contexts: list[Tensor]  # each [tokens, cached width]
    seed: int = 3

    @classmethod
    def draw(cls, kind: Kind, *sizes: tuple[int, int], H: int, dtype: torch.dtype = torch.float32) -> "Case":
        generator = torch.Generator().manual_seed(11)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        return cls(
            kind=kind,
            sizes=sizes,
            queries=[numbers(rows, H, kind.query_width) for rows, _ in sizes],
            contexts=[numbers(tokens, kind.cached_width) for _, tokens in sizes],
        )

    def rows(self, sequence: int, *, first: int, end: int) -> "Case":
        """Some of a sequence's new rows, by themselves: as if the tokens after were not there yet."""
        rows, tokens = self.sizes[sequence]
        num_context = tokens - rows + end
        return replace(
            self,
            sizes=((end - first, num_context),),
            queries=[self.queries[sequence][first:end]],
            contexts=[self.contexts[sequence][:num_context]],
            seed=8,
        )

    def compute(self, form: Form = Attention.launches) -> list[Tensor]:
        """The result of each sequence."""
        scattered = Scattered(sizes=self.sizes, seed=self.seed)
        query = torch.cat(self.queries)
        shape = self.kind.shape(query.shape[1])
        plan = plan_attention(scattered.spans, scattered.positions, BLOCK_SIZE, shape)
        layer = self.kind.layer(query, scattered.cache(self.contexts), plan)
        for launch in form(layer):
            launch.run()
        return list(layer.mixed.split([rows for rows, _ in self.sizes]))

    def plainly(self, sequence: int, dtype: torch.dtype) -> Tensor:
        """Softmax attention of one sequence in torch."""
        query = self.queries[sequence].to(dtype)
        keys, values = self.kind.keys_and_values(self.contexts[sequence].to(dtype), query.shape[1])
        positions = torch.arange(len(keys))[-len(query) :]
        return plain_attention(query, keys, values, positions, SCALE)
