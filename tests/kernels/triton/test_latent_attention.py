"""Multi-head latent attention on GPUs' kernels: errors against float64, and bits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.kernels.triton.attention_launches import Attention
from outrider.kernels.triton.attention_plan import AttentionPlan, plan_attention
from outrider.kernels.triton.attention_splits import combine_splits_kernel
from outrider.kernels.triton.latent_attention import latent_attention, latent_layer, walk_latent_kernel
from outrider.kernels.triton.launch import Launch
from tests.kernels.exactness import assert_close_as_plain
from tests.kernels.triton.attention_cases import EVERY_DTYPE, EVERY_FORM, SCALE, Case, Latent
from tests.kernels.triton.scattered import BLOCK_SIZE, Scattered

# Around the borders of blocks (16), inner steps (64, in fp32 32), splits (256), tiles (64 rows).
RAGGED = ((1, 1), (2, 65), (3, 258), (17, 17))


@EVERY_FORM
@EVERY_DTYPE
def test_ragged_sequences_are_as_exact_as_plain_attention(form, dtype):
    case = Case.draw(Latent(), *RAGGED, H=4, dtype=dtype)
    for sequence, result in enumerate(case.compute(form)):
        plain = case.plainly(sequence, dtype)
        assert_close_as_plain(result, plain, case.plainly(sequence, torch.float64))


@pytest.mark.parametrize(("H", "C", "P"), [(1, 16, 16), (3, 64, 32), (16, 48, 16), (66, 32, 8)])
def test_any_heads_and_widths(H, C, P):
    case = Case.draw(Latent(C, P), (2, 40), H=H)
    (result,) = case.compute()
    assert_close_as_plain(result, case.plainly(0, torch.float32), case.plainly(0, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_walked_and_pieced_splits_have_the_same_bits(dtype):
    case = Case.draw(Latent(), (2, 257), (17, 140), (1, 513), H=4, dtype=dtype)
    forms = case.compute(Attention.walked_launches), case.compute(Attention.pieced_launches)
    for walked, pieced in zip(*forms, strict=True):
        assert torch.equal(walked, pieced)


@EVERY_FORM
def test_a_row_has_the_same_bits_alone_as_among_others(form):
    case = Case.draw(Latent(), (1, 31), (20, 270), H=4, dtype=torch.bfloat16)
    together = case.compute(form)[1]
    for row in (0, 6, 19):
        (alone,) = case.rows(1, first=row, end=row + 1).compute(form)
        assert torch.equal(alone[0], together[row])


def test_a_chunk_has_the_same_bits_however_it_is_cut():
    case = Case.draw(Latent(), (24, 270), H=4, dtype=torch.float16)
    (whole,) = case.compute(Attention.walked_launches)
    parts = [
        case.rows(0, first=first, end=end).compute(Attention.pieced_launches)[0]
        for first, end in ((0, 11), (11, 24))
    ]
    assert torch.equal(torch.cat(parts), whole)


@EVERY_FORM
def test_sequences_without_rows_change_nothing(form):
    case = Case.draw(Latent(), (2, 40), H=4)
    none = Case.draw(Latent(), (0, 0), (2, 40), (0, 33), H=4)
    padded = replace(
        none, queries=[none.queries[0], case.queries[0], none.queries[2]],
        contexts=[none.contexts[0], case.contexts[0], none.contexts[2]],
    )  # fmt: skip
    assert torch.equal(padded.compute(form)[1], case.compute(form)[0])


def test_no_rows_at_all_give_an_empty_result():
    (result,) = Case.draw(Latent(), (0, 0), H=4).compute()
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
    return list(latent_layer(latent, turned, cache, plan, SCALE, mixed).launches())


def test_few_tokens_take_a_program_for_each_split_and_many_walk_them():
    assert meta_launches(8, 10_240)[-1].kernel is combine_splits_kernel
    assert [launch.kernel for launch in meta_launches(1024, 10_240)] == [walk_latent_kernel]


def test_the_number_of_tiles_is_no_constant_that_a_kernel_is_compiled_for():
    some, more = meta_launches(80, 10_240), meta_launches(88, 10_240)
    assert [launch.constants for launch in some] == [launch.constants for launch in more]


def test_partial_results_are_bounded():
    assert [launch.kernel for launch in meta_launches(128, 1 << 20)] == [walk_latent_kernel]


def test_queries_need_not_be_contiguous():
    case = Case.draw(Latent(), (2, 40), H=4)
    scattered = Scattered(sizes=case.sizes)
    shape = AttentionShape(num_queries_per_key=4, num_key_heads=1, key_width=32, value_width=24)
    plan = plan_attention(scattered.spans, scattered.positions, BLOCK_SIZE, shape)
    latent, turned = case.queries[0].split([24, 8], dim=2)
    result = latent_attention(latent, turned, scattered.cache(case.contexts), plan, SCALE)
    assert torch.equal(result, case.compute()[0])
