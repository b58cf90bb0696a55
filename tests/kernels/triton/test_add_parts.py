"""Parts of ranks in bf16, added in the interpreter."""

import pytest
import torch

from outrider.kernels.triton import add_parts
from tests.kernels.exactness import draw


@pytest.mark.parametrize("R", [2, 8])
def test_bf16_parts_are_rounded_once(R):
    parts = draw(R, 3, 1030, dtype=torch.bfloat16)
    total = torch.zeros(3, 1030)
    for part in parts:
        total = total + part.float()
    assert torch.equal(add_parts(parts), total.bfloat16())


def test_parts_may_lie_behind_other_rows_of_a_message():
    gathered = draw(2, 9, 70, dtype=torch.bfloat16)
    assert torch.equal(add_parts(gathered[:, 6:]), add_parts(gathered[:, 6:].contiguous()))
