"""Grouped-query attention on GPUs' kernels: errors against float64, and bits."""

import pytest
import torch

from outrider.kernels.triton.attention_launches import Attention
from tests.kernels.exactness import assert_close_as_plain
from tests.kernels.triton.attention_cases import EVERY_DTYPE, EVERY_FORM, Case, Grouped


@EVERY_FORM
@EVERY_DTYPE
def test_ragged_sequences_are_as_exact_as_plain_attention(form, dtype):
    case = Case.draw(Grouped(), (1, 1), (3, 258), (17, 17), H=6, dtype=dtype)
    for sequence, result in enumerate(case.compute(form)):
        plain = case.plainly(sequence, dtype)
        assert_close_as_plain(result, plain, case.plainly(sequence, torch.float64))


@pytest.mark.parametrize(("H", "G", "P"), [(1, 1, 16), (4, 4, 24), (66, 1, 8)])
def test_any_heads_and_widths(H, G, P):
    case = Case.draw(Grouped(G, P), (2, 40), H=H)
    (result,) = case.compute()
    assert_close_as_plain(result, case.plainly(0, torch.float32), case.plainly(0, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_walked_and_pieced_splits_have_the_same_bits(dtype):
    case = Case.draw(Grouped(), (2, 257), (23, 140), H=6, dtype=dtype)
    forms = case.compute(Attention.walked_launches), case.compute(Attention.pieced_launches)
    for walked, pieced in zip(*forms, strict=True):
        assert torch.equal(walked, pieced)


@EVERY_FORM
def test_a_row_has_the_same_bits_alone_as_among_others(form):
    case = Case.draw(Grouped(), (1, 31), (24, 270), H=6, dtype=torch.float16)
    together = case.compute(form)[1]
    for row in (0, 8, 23):
        (alone,) = case.rows(1, first=row, end=row + 1).compute(form)
        assert torch.equal(alone[0], together[row])
