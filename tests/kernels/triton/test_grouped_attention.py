"""Grouped-query attention on GPUs' kernels: errors against float64, and bits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.kernels.triton.attention_plan import plan_attention
from outrider.kernels.triton.grouped_attention import (
    grouped_attention_launches,
    pieced_launches,
    walked_launches,
)
from outrider.kernels.triton.launch import Launch
from tests.kernels.triton.scattered import (
    BLOCK_SIZE,
    Scattered,
    assert_close_as_plain,
    plain_attention,
    run_all,
)

SCALE = 0.2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FORMS = pytest.mark.parametrize("launches", [walked_launches, pieced_launches], ids=["walked", "pieced"])


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences of some tokens each: queries of the new ones, cached rows of all."""

    sizes: tuple[tuple[int, int], ...]
    queries: list[Tensor]  # each [rows, H, P]
    contexts: list[Tensor]  # each [tokens, 2 G P]
    G: int
    seed: int = 3

    @classmethod
    def draw(
        cls, *sizes: tuple[int, int], H: int = 6, G: int = 2, P: int = 16, dtype: torch.dtype = torch.float32
    ) -> "Case":
        generator = torch.Generator().manual_seed(11)
        return cls(
            sizes=sizes,
            queries=[torch.randn(rows, H, P, generator=generator).to(dtype) for rows, _ in sizes],
            contexts=[torch.randn(tokens, 2 * G * P, generator=generator).to(dtype) for _, tokens in sizes],
            G=G,
        )

    def row(self, sequence: int, row: int) -> "Case":
        """One of a sequence's new rows by itself: as if the tokens after were not there yet."""
        rows, tokens = self.sizes[sequence]
        num_context = tokens - rows + row + 1
        return replace(
            self,
            sizes=((1, num_context),),
            queries=[self.queries[sequence][row : row + 1]],
            contexts=[self.contexts[sequence][:num_context]],
            seed=8,
        )

    def compute(self, launches: Callable[..., Iterable[Launch]] = grouped_attention_launches) -> list[Tensor]:
        """The result of each sequence."""
        scattered = Scattered(sizes=self.sizes, seed=self.seed)
        query = torch.cat(self.queries)
        _, H, P = query.shape
        shape = AttentionShape(
            num_queries_per_key=H // self.G, num_key_heads=self.G, key_width=P, value_width=P
        )
        plan = plan_attention(scattered.spans, scattered.positions, BLOCK_SIZE, shape)
        cache = scattered.cache(self.contexts)
        mixed = run_all(launches, query, cache, plan, SCALE, mixed=torch.empty_like(query))
        return list(mixed.split([rows for rows, _ in self.sizes]))

    def plainly(self, sequence: int, dtype: torch.dtype) -> Tensor:
        query = self.queries[sequence].to(dtype)
        _, H, P = query.shape
        halves = (
            self.contexts[sequence].to(dtype).view(-1, 2, self.G, P).repeat_interleave(H // self.G, dim=2)
        )
        positions = torch.arange(len(halves))[-len(query) :]
        return plain_attention(query, halves[:, 0], halves[:, 1], positions, SCALE)


@FORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
def test_ragged_sequences_are_as_exact_as_plain_attention(launches, dtype):
    case = Case.draw((1, 1), (3, 258), (17, 17), dtype=dtype)
    for sequence, result in enumerate(case.compute(launches)):
        plain = case.plainly(sequence, dtype)
        assert_close_as_plain(result, plain, case.plainly(sequence, torch.float64))


@pytest.mark.parametrize(("H", "G", "P"), [(1, 1, 16), (4, 4, 24), (66, 1, 8)])
def test_any_heads_and_widths(H, G, P):
    case = Case.draw((2, 40), H=H, G=G, P=P)
    (result,) = case.compute()
    assert_close_as_plain(result, case.plainly(0, torch.float32), case.plainly(0, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_walked_and_pieced_splits_have_the_same_bits(dtype):
    case = Case.draw((2, 257), (23, 140), dtype=dtype)
    for walked, pieced in zip(case.compute(walked_launches), case.compute(pieced_launches), strict=True):
        assert torch.equal(walked, pieced)


@FORMS
def test_a_row_has_the_same_bits_alone_as_among_others(launches):
    case = Case.draw((1, 31), (24, 270), dtype=torch.float16)
    together = case.compute(launches)[1]
    for row in (0, 8, 23):
        (alone,) = case.row(1, row).compute(launches)
        assert torch.equal(alone[0], together[row])
