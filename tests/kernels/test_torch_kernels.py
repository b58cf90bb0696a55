"""Every torch kernel against the same formula in float64.

The allowed error is twice that of the plain formula in torch with inputs of the same precision, plus half a
unit in the last place of the result: both are rounded to it once.
"""

import math

import pytest
import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import Angles, AttentionShape, Choice
from outrider.model.batch import Span
from tests.kernels.exactness import assert_close_as_plain, gate_rule, plain_attention

kernels = load_kernels("torch")
BLOCK_SIZE = 16


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def draw(dtype):
    """Draws normal numbers of the precision under test."""
    generator = torch.Generator().manual_seed(11)
    return lambda *shape: torch.randn(*shape, generator=generator).to(dtype)


@pytest.mark.parametrize("num_rows", [1, 16, 37, 300])
def test_linear(draw, num_rows):
    x, weight = draw(num_rows, 96), draw(40, 96)
    result = kernels.linear(x, kernels.pack_linear(weight))
    assert_close_as_plain(result, x @ weight.t(), x.double() @ weight.double().t())


@pytest.mark.parametrize("num_rows", [1, 16, 37, 300])
def test_head_linear(draw, num_rows):
    x, weight = draw(num_rows, 4, 24), draw(4, 24, 40)
    result = kernels.head_linear(x, kernels.pack_head_linear(weight))
    plain = torch.einsum("thk,hkn->thn", x, weight)
    assert_close_as_plain(result, plain, torch.einsum("thk,hkn->thn", x.double(), weight.double()))


def test_rms_norm(draw):
    x, weight = draw(9, 100), 1 + draw(100) * 0.1

    def formula(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    result = kernels.rms_norm(x, weight.float(), 1e-6)
    assert_close_as_plain(result, formula(x, weight), formula(x.double(), weight.double()))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotate(draw, interleaved):
    x, angles = draw(9, 3, 16), torch.linspace(0, 50, 72).view(9, 8)

    def formula(x: Tensor, angles: Tensor) -> Tensor:
        pairs = x.unflatten(2, (8, 2)) if interleaved else x.unflatten(2, (2, 8)).transpose(2, 3)
        first, second = pairs.unbind(-1)
        cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

    result = kernels.rotate(x, Angles(cos=angles.cos(), sin=angles.sin(), interleaved=interleaved))
    assert_close_as_plain(result, formula(x, angles), formula(x.double(), angles.double()))


def test_silu_product(draw):
    gate_up = 4 * draw(9, 70)
    gate, up = gate_up.chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    assert_close_as_plain(kernels.silu_product(gate_up), torch.nn.functional.silu(gate) * up, exact)


def scattered(spans: list[tuple[int, int]]) -> tuple[list[Span], Tensor, list[Tensor]]:
    """Spans of (rows, context) with blocks in no order; their positions, and the slots of all contexts."""
    free = torch.randperm(200, generator=torch.Generator().manual_seed(3)).tolist()
    result, positions, slots, first_row = [], [], [], 0
    for num_rows, num_context in spans:
        block_ids = [free.pop() for _ in range(math.ceil(num_context / BLOCK_SIZE))]
        result.append(
            Span(first_row=first_row, num_rows=num_rows, num_context=num_context, block_ids=block_ids)
        )
        positions += range(num_context - num_rows, num_context)
        slots.append(
            torch.tensor(
                [block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(num_context)]
            )
        )
        first_row += num_rows
    return result, torch.tensor(positions), slots


def assert_attention(result: Tensor, query: Tensor, spans, positions, contexts, scale: float) -> None:
    """Compare with plain attention over each span's own (keys, values)."""
    for span, (keys, values) in zip(spans, contexts, strict=True):
        rows = slice(span.first_row, span.first_row + span.num_rows)
        plain = plain_attention(query[rows], keys, values, positions[rows], scale)
        exact = plain_attention(query[rows].double(), keys.double(), values.double(), positions[rows], scale)
        assert_close_as_plain(result[rows], plain, exact)


SPANS = [(1, 1), (3, 200), (1, 128), (140, 140), (1, 129), (70, 400)]


def test_latent_attention(draw):
    H, C, P = 4, 24, 8
    spans, positions, slots = scattered(SPANS)
    query, cache = draw(len(positions), H, C + P), draw(200 * BLOCK_SIZE, C + P)
    shape = AttentionShape(num_queries_per_key=H, num_key_heads=1, key_width=C + P, value_width=C)
    plan = kernels.plan_attention(spans, positions, BLOCK_SIZE, shape)
    result = kernels.latent_attention(query[..., :C], query[..., C:], cache, plan, 0.2)
    keys = [cache[s][:, None].expand(-1, H, -1) for s in slots]
    assert_attention(result, query, spans, positions, [(k, k[..., :C]) for k in keys], 0.2)


def test_grouped_attention(draw):
    H, G, P = 6, 2, 16
    spans, positions, slots = scattered(SPANS)
    query, cache = draw(len(positions), H, P), draw(200 * BLOCK_SIZE, 2 * G * P)
    shape = AttentionShape(num_queries_per_key=H // G, num_key_heads=G, key_width=P, value_width=P)
    plan = kernels.plan_attention(spans, positions, BLOCK_SIZE, shape)
    result = kernels.grouped_attention(query, cache, plan, 0.2)
    halves = [cache[s].view(-1, 2, G, P).repeat_interleave(H // G, dim=2) for s in slots]
    assert_attention(result, query, spans, positions, [(h[:, 0], h[:, 1]) for h in halves], 0.2)


def test_a_block_size_that_does_not_divide_a_split_is_refused():
    shape = AttentionShape(num_queries_per_key=1, num_key_heads=1, key_width=8, value_width=8)
    with pytest.raises(ValueError, match="block size 24 does not divide 128"):
        kernels.plan_attention([], torch.zeros(0, dtype=torch.int64), 24, shape)


def test_experts_and_combine(draw):
    T, D, F, E, A = 90, 32, 20, 6, 3
    x, gate_up, down = draw(T, D), draw(E, 2 * F, D), draw(E, D, F)
    generator = torch.Generator().manual_seed(5)
    chosen = torch.rand(T, E, generator=generator).argsort(dim=1)[:, :A]
    choice = Choice(experts=chosen, weights=torch.rand(T, A, generator=generator))
    shared = draw(T, D)

    def formula(x: Tensor, gate_up: Tensor, down: Tensor, shared: Tensor, weights: Tensor) -> Tensor:
        both = torch.einsum("td,tafd->taf", x, gate_up[chosen])
        gate, up = both.chunk(2, dim=-1)
        outputs = torch.einsum("taf,tadf->tad", torch.nn.functional.silu(gate) * up, down[chosen])
        return (outputs * weights[..., None]).sum(1) + shared

    packed = kernels.pack_experts(list(gate_up), list(down))
    result = kernels.combine(kernels.experts(x, choice, packed), choice, shared)
    plain = formula(x, gate_up, down, shared, choice.weights.to(x.dtype))
    exact = formula(*(t.double() for t in (x, gate_up, down, shared, choice.weights)))
    assert_close_as_plain(result, plain, exact)


def test_combine_without_a_shared_expert_adds_in_the_order_of_choice():
    big = torch.tensor([[[2.0**25], [1.0], [-(2.0**25)]]])
    choice = Choice(experts=torch.tensor([[2, 0, 1]]), weights=torch.ones(1, 3))
    assert kernels.combine(big, choice, None).item() == (2.0**25 + 1 - 2.0**25) - 1


def test_gate_weights(draw):
    logits = draw(50, 8).float()
    choice = kernels.gate(logits, torch.zeros(8), gate_rule(scaling=2.5))

    def formula(logits: Tensor) -> Tensor:
        scores = logits.sigmoid().gather(1, choice.experts)
        return 2.5 * scores / scores.sum(1, keepdim=True)

    assert_close_as_plain(choice.weights, formula(logits), formula(logits.double()))


def test_the_gates_bias_chooses_but_does_not_weigh():
    logits, bias = torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([0.0, 0.0, 9.0])
    choice = kernels.gate(logits, bias, gate_rule(normalize_weights=False))
    assert choice.experts.tolist() == [[2, 0]]
    assert choice.weights.tolist()[0] == pytest.approx([0.5, torch.tensor(3.0).sigmoid().item()])


def test_equal_scores_go_to_the_lower_expert():
    choice = kernels.gate(torch.zeros(1, 64), torch.zeros(64), gate_rule(num_experts_per_token=5))
    assert choice.experts.tolist() == [[0, 1, 2, 3, 4]]


def test_equal_groups_go_to_the_lower_group():
    grouped = gate_rule(num_groups=4, num_kept_groups=2, num_experts_per_token=4)
    assert kernels.gate(torch.zeros(1, 8), torch.zeros(8), grouped).experts.tolist() == [[0, 1, 2, 3]]


def test_a_group_is_judged_by_its_two_best_experts():
    # One outstanding expert in the first group, two good ones in the second.
    logits = torch.tensor([[4.0, -9.0, -9.0, 1.0, 1.0, -9.0]])
    choice = kernels.gate(logits, torch.zeros(6), gate_rule(num_groups=2))
    assert choice.experts.tolist() == [[3, 4]]


def test_experts_of_dropped_groups_are_not_chosen_even_if_all_kept_scores_are_negative():
    bias = torch.tensor([-5.0, -5.0, -6.0, -6.0])
    choice = kernels.gate(torch.zeros(1, 4), bias, gate_rule(num_groups=2))
    assert choice.experts.tolist() == [[0, 1]]
