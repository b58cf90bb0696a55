"""The outputs of a token's experts brought together."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles

BLOCK_D = 1024


def combine(outputs: Tensor, choice: Choice, shared: Tensor | None) -> Tensor:
    """Weigh [T, A, D] and add in the token's own order in fp32, the shared expert last: -> [T, D]."""
    T, _, D = outputs.shape
    shared = None if shared is None else shared.contiguous()
    total = torch.empty(T, D, dtype=outputs.dtype, device=outputs.device)
    combine_launch(outputs.contiguous(), choice.weights.contiguous(), shared, total).run()
    return total


def combine_launch(outputs: Tensor, weights: Tensor, shared: Tensor | None, total: Tensor) -> Launch:
    """Outputs [T, A, D] by weights [T, A], all dense, into total [T, D]."""
    T, A, D = outputs.shape
    tensors = {"outputs_ptr": outputs, "weights_ptr": weights, "shared_ptr": shared, "total_ptr": total}
    return Launch(
        kernel=combine_kernel,
        grid=(T, num_tiles(D, BLOCK_D)),
        arguments={name: tensor for name, tensor in tensors.items() if tensor is not None},
        constants={"A": A, "D": D, "BLOCK_D": BLOCK_D} | ({"shared_ptr": None} if shared is None else {}),
        num_warps=4,
    )


@triton.jit
def combine_kernel(
    outputs_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    shared_ptr: tl.tensor,
    total_ptr: tl.tensor,
    A: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """total = ((w[0] * y[0] + w[1] * y[1]) + ...) + shared, in fp32, rounded once.

    y [T, A, D], w [T, A], shared [T, D] -> total [T, D]; a program takes BLOCK_D elements of one token.
    """
    token = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = offs < D
    outputs = outputs_ptr + token * A * D + offs
    total = tl.load(outputs, mask=inside).to(tl.float32) * tl.load(weights_ptr + token * A)
    for a in range(1, A):
        output = tl.load(outputs + a * D, mask=inside).to(tl.float32)
        total += output * tl.load(weights_ptr + token * A + a)
    if shared_ptr is not None:
        total += tl.load(shared_ptr + token * D + offs, mask=inside).to(tl.float32)
    tl.store(total_ptr + token * D + offs, total, mask=inside)
