"""The sigmoid gate, with groups and a bias that steers choice only (DeepSeek-V3, arXiv 2412.19437, 2.1.2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.interface import Choice, GateRule
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import padded_size

# Below every score that can be chosen, above one that has been.
FLOOR = tl.constexpr(-3.0e38)
TAKEN = tl.constexpr(float("-inf"))


def gate(logits: Tensor, bias: Tensor, rule: GateRule) -> Choice:
    """Choose experts by sigmoid(logits) + bias, weigh them by sigmoid(logits): logits [T, E] fp32."""
    shape = (logits.shape[0], rule.num_experts_per_token)
    choice = Choice(
        experts=torch.empty(shape, dtype=torch.int64, device=logits.device),
        weights=torch.empty(shape, dtype=torch.float32, device=logits.device),
    )
    gate_launch(logits, bias, rule, choice).run()
    return choice


def gate_launch(logits: Tensor, bias: Tensor, rule: GateRule, choice: Choice) -> Launch:
    """Logits [T, E], contiguous, of which choice [T, A] is made."""
    T, E = logits.shape
    group_size = E // rule.num_groups
    return Launch(
        kernel=gate_kernel,
        grid=(T,),
        arguments={
            "logits_ptr": logits,
            "bias_ptr": bias,
            "experts_ptr": choice.experts,
            "weights_ptr": choice.weights,
            "scaling": rule.scaling,
        },
        constants={
            "A": rule.num_experts_per_token,
            "NUM_GROUPS": rule.num_groups,
            "NUM_KEPT": rule.num_kept_groups,
            "GROUP_SIZE": group_size,
            "NORMALIZES": rule.normalize_weights,
            "BLOCK_A": padded_size(rule.num_experts_per_token),
            "BLOCK_G": padded_size(rule.num_groups),
            "BLOCK_S": padded_size(group_size),
        },
        # One warp: finding the best of a row is then a few shuffles, without a barrier.
        num_warps=1,
    )


@triton.jit
def gate_kernel(
    logits_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    experts_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    scaling: float,
    A: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    NUM_KEPT: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    NORMALIZES: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    """experts = top A of sigmoid(logits) + bias; weights = sigmoid(logits[experts]) / their sum * scaling.

    logits [T, E], bias [E] -> experts [T, A] int64, weights [T, A]; a program takes one token. Its scores lie
    in groups [BLOCK_G, BLOCK_S]. Experts are distinct whatever the logits are, NaN too.
    """
    row = tl.program_id(0).to(tl.int64) * NUM_GROUPS * GROUP_SIZE
    groups, members = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_S)
    offs = groups[:, None] * GROUP_SIZE + members[None, :]
    exists = (groups < NUM_GROUPS)[:, None] & (members < GROUP_SIZE)[None, :]
    logits = tl.load(logits_ptr + row + offs, mask=exists, other=0.0)
    biased = sigmoid(logits) + tl.load(bias_ptr + offs, mask=exists, other=0.0)
    biased = tl.where(biased > FLOOR, biased, FLOOR)  # NaN is not greater
    biased = tl.where(exists, biased, TAKEN)
    if NUM_GROUPS > 1:
        kept = kept_groups(biased, NUM_GROUPS, NUM_KEPT, GROUP_SIZE, BLOCK_G, BLOCK_S)
        biased = tl.where(exists & (kept == 0)[:, None], FLOOR, biased)
    biased = tl.reshape(biased, (BLOCK_G * BLOCK_S,))
    places, choices = tl.arange(0, BLOCK_G * BLOCK_S), tl.arange(0, BLOCK_A)
    chosen = tl.zeros((BLOCK_A,), dtype=tl.int32)
    for a in tl.static_range(A):
        place = tl.argmax(biased, axis=0)
        chosen = tl.where(choices == a, place // BLOCK_S * GROUP_SIZE + place % BLOCK_S, chosen)
        biased = tl.where(places == place, TAKEN, biased)
    weights = sigmoid(tl.load(logits_ptr + row + chosen))
    weights = tl.where(choices < A, weights, 0.0)
    if NORMALIZES:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    out = tl.program_id(0).to(tl.int64) * A + choices
    tl.store(experts_ptr + out, chosen.to(tl.int64), mask=choices < A)
    tl.store(weights_ptr + out, weights * scaling, mask=choices < A)


@triton.jit
def kept_groups(
    biased: tl.tensor,
    NUM_GROUPS: tl.constexpr,
    NUM_KEPT: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> tl.tensor:
    """1 for the NUM_KEPT groups whose two best scores have the largest sum, of [BLOCK_G, BLOCK_S]; else 0."""
    groups, members = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_S)
    judged = tl.max(biased, axis=1)
    if GROUP_SIZE > 1:
        first = tl.argmax(biased, axis=1)
        judged += tl.max(tl.where(members[None, :] == first[:, None], TAKEN, biased), axis=1)
    judged = tl.where(groups < NUM_GROUPS, tl.maximum(judged, FLOOR), TAKEN)
    kept = tl.zeros((BLOCK_G,), dtype=tl.int32)
    for _ in tl.static_range(NUM_KEPT):
        best = tl.argmax(judged, axis=0)
        kept = tl.where(groups == best, 1, kept)
        judged = tl.where(groups == best, TAKEN, judged)
    return kept


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x)) in fp32."""
    return 1 / (1 + tl.exp(-x))
