"""Multi-head latent attention on GPUs' kernels: errors against float64, and bits."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.kernels.triton.attention_plan import AttentionPlan, plan_attention
from outrider.kernels.triton.attention_splits import combine_splits_kernel
from outrider.kernels.triton.latent_attention import (
    latent_attention,
    latent_attention_launches,
    pieced_launches,
    walk_latent_kernel,
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
# Around the borders of blocks (16), inner steps (64, in fp32 32), splits (256), tiles (64 rows).
RAGGED = ((1, 1), (2, 65), (3, 258), (17, 17))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences of some tokens each: queries of the new ones, cached rows of all."""

    sizes: tuple[tuple[int, int], ...]
    queries: list[Tensor]  # each [rows, H, C + P]
    contexts: list[Tensor]  # each [tokens, C + P]
    C: int
    seed: int = 3

    @classmethod
    def draw(
        cls, *sizes: tuple[int, int], H: int = 4, C: int = 24, P: int = 8, dtype: torch.dtype = torch.float32
    ) -> "Case":
        generator = torch.Generator().manual_seed(11)
        return cls(
            sizes=sizes,
            queries=[torch.randn(rows, H, C + P, generator=generator).to(dtype) for rows, _ in sizes],
            contexts=[torch.randn(tokens, C + P, generator=generator).to(dtype) for _, tokens in sizes],
            C=C,
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

    def compute(self, launches: Callable[..., Iterable[Launch]] = latent_attention_launches) -> list[Tensor]:
        """The result of each sequence."""
        scattered = Scattered(sizes=self.sizes, seed=self.seed)
        query = torch.cat(self.queries)
        _, H, width = query.shape
        shape = AttentionShape(num_queries_per_key=H, num_key_heads=1, key_width=width, value_width=self.C)
        plan = plan_attention(scattered.spans, scattered.positions, BLOCK_SIZE, shape)
        latent, turned = query[..., : self.C].contiguous(), query[..., self.C :].contiguous()
        mixed = run_all(
            launches, latent, turned, scattered.cache(self.contexts), plan, SCALE,
            mixed=torch.empty_like(latent),
        )  # fmt: skip
        return list(mixed.split([rows for rows, _ in self.sizes]))

    def plainly(self, sequence: int, dtype: torch.dtype) -> Tensor:
        query, context = self.queries[sequence].to(dtype), self.contexts[sequence].to(dtype)
        keys = context[:, None].expand(-1, query.shape[1], -1)
        positions = torch.arange(len(context))[-len(query) :]
        return plain_attention(query, keys, keys[..., : self.C], positions, SCALE)


@FORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
def test_ragged_sequences_are_as_exact_as_plain_attention(launches, dtype):
    case = Case.draw(*RAGGED, dtype=dtype)
    for sequence, result in enumerate(case.compute(launches)):
        plain = case.plainly(sequence, dtype)
        assert_close_as_plain(result, plain, case.plainly(sequence, torch.float64))


@pytest.mark.parametrize(("H", "C", "P"), [(1, 16, 16), (3, 64, 32), (16, 48, 16), (66, 32, 8)])
def test_any_heads_and_widths(H, C, P):
    case = Case.draw((2, 40), H=H, C=C, P=P)
    (result,) = case.compute()
    assert_close_as_plain(result, case.plainly(0, torch.float32), case.plainly(0, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_walked_and_pieced_splits_have_the_same_bits(dtype):
    case = Case.draw((2, 257), (17, 140), (1, 513), dtype=dtype)
    for walked, pieced in zip(case.compute(walked_launches), case.compute(pieced_launches), strict=True):
        assert torch.equal(walked, pieced)


@FORMS
def test_a_row_has_the_same_bits_alone_as_among_others(launches):
    case = Case.draw((1, 31), (20, 270), dtype=torch.bfloat16)
    together = case.compute(launches)[1]
    for row in (0, 6, 19):
        (alone,) = case.rows(1, first=row, end=row + 1).compute(launches)
        assert torch.equal(alone[0], together[row])


def test_a_chunk_has_the_same_bits_however_it_is_cut():
    case = Case.draw((24, 270), dtype=torch.float16)
    (whole,) = case.compute(walked_launches)
    parts = [
        case.rows(0, first=first, end=end).compute(pieced_launches)[0] for first, end in ((0, 11), (11, 24))
    ]
    assert torch.equal(torch.cat(parts), whole)


@FORMS
def test_sequences_without_rows_change_nothing(launches):
    case = Case.draw((2, 40))
    none = Case.draw((0, 0), (2, 40), (0, 33))
    padded = replace(
        none, queries=[none.queries[0], case.queries[0], none.queries[2]],
        contexts=[none.contexts[0], case.contexts[0], none.contexts[2]],
    )  # fmt: skip
    assert torch.equal(padded.compute(launches)[1], case.compute(launches)[0])


def test_no_rows_at_all_give_an_empty_result():
    (result,) = Case.draw((0, 0)).compute()
    assert result.shape == (0, 4, 24)


def meta_launches(num_tokens: int, num_context: int) -> list[Launch]:
    """The launches of one sequence at Kimi K2.5's shapes on one of eight ranks."""

    def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    plan = AttentionPlan(
        tiles=meta(num_tokens * 8 // 64 + 2, 7, dtype=torch.int32),
        block_tables=meta(1, num_context // BLOCK_SIZE, dtype=torch.int32),
        positions=meta(num_tokens, dtype=torch.int64),
        shape=AttentionShape(num_queries_per_key=8, num_key_heads=1, key_width=576, value_width=512),
        block_size=BLOCK_SIZE,
    )
    latent, turned = meta(num_tokens, 8, 512), meta(num_tokens, 8, 64)
    cache, mixed = meta(num_context, 576), meta(num_tokens, 8, 512)
    return list(latent_attention_launches(latent, turned, cache, plan, SCALE, mixed))


def test_few_tokens_take_a_program_for_each_split_and_many_walk_them():
    assert meta_launches(8, 10_240)[-1].kernel is combine_splits_kernel
    assert [launch.kernel for launch in meta_launches(1024, 10_240)] == [walk_latent_kernel]


def test_the_number_of_tiles_is_no_constant_that_a_kernel_is_compiled_for():
    some, more = meta_launches(80, 10_240), meta_launches(88, 10_240)
    assert [launch.constants for launch in some] == [launch.constants for launch in more]


def test_partial_results_are_bounded():
    assert [launch.kernel for launch in meta_launches(128, 1 << 20)] == [walk_latent_kernel]


def test_queries_need_not_be_contiguous():
    case = Case.draw((2, 40))
    scattered = Scattered(sizes=case.sizes)
    shape = AttentionShape(num_queries_per_key=4, num_key_heads=1, key_width=32, value_width=24)
    plan = plan_attention(scattered.spans, scattered.positions, BLOCK_SIZE, shape)
    latent, turned = case.queries[0].split([24, 8], dim=2)
    result = latent_attention(latent, turned, scattered.cache(case.contexts), plan, SCALE)
    assert torch.equal(result, case.compute()[0])
