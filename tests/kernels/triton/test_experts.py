"""Routed experts in every storage, against float64 and bit for bit against themselves."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.triton.align import align
from outrider.kernels.triton.experts import (
    TILES,
    ExpertWeights,
    Rows,
    down_launch,
    empty_rows,
    experts,
    gate_up_launch,
    pack_experts,
    rows_of,
    tile_width,
)
from outrider.kernels.triton.quantize import quantize_rows
from outrider.kernels.weights import Fp8Weight, Int4Weight, StoredWeight, to_plain
from tests.kernels.exactness import assert_close_as_plain

E, A = 4, 2
Maker = Callable[[int, int], StoredWeight]


def maker(storage: str, dtype: torch.dtype, seed: int) -> Maker:
    """Draws weights [N, K] in a storage, for inputs of a type."""
    generator = torch.Generator().manual_seed(seed)

    def plain(N: int, K: int) -> Tensor:
        return (torch.randn(N, K, generator=generator) / K**0.5).to(dtype)

    def int4(N: int, K: int) -> Int4Weight:
        packed = torch.randint(-(2**31), 2**31, (N, K // 8), generator=generator).to(torch.int32)
        scales = (0.02 + torch.rand(N, K // 32, generator=generator) / 9).bfloat16()
        return Int4Weight(packed=packed, scales=scales, dtype=dtype)

    def fp8(N: int, K: int) -> Fp8Weight:
        scales = torch.rand(-(-N // 128), -(-K // 128), generator=generator) / K**0.5
        values = torch.randn(N, K, generator=generator).to(torch.float8_e4m3fn)
        return Fp8Weight(values=values, scales=scales, dtype=dtype)

    return {"plain": plain, "int4": int4, "fp8": fp8}[storage]


def draw_weights(storage: str, dtype: torch.dtype, D: int, F: int) -> tuple[list, list]:
    make = maker(storage, dtype, seed=D + F)
    return [make(2 * F, D) for _ in range(E)], [make(D, F) for _ in range(E)]


def draw_rows(T: int, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs [T, D] and chosen experts [T, A]; expert 1 is never chosen."""
    generator = torch.Generator().manual_seed(T)
    x = torch.randn(T, D, generator=generator).to(dtype)
    noise = torch.rand(T, E, generator=generator)
    noise[:, 1] = 2
    return x, noise.argsort(1)[:, :A].contiguous()


def hidden_of(x: Tensor, weights: list[Tensor], chosen: Tensor) -> Tensor:
    gate, up = torch.einsum("td,tafd->taf", x, torch.stack(weights)[chosen]).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def formula(x: Tensor, gate_up: list[Tensor], down: list[Tensor], chosen: Tensor) -> Tensor:
    return torch.einsum("taf,tadf->tad", hidden_of(x, gate_up, chosen), torch.stack(down)[chosen])


def run(x: Tensor, chosen: Tensor, weights: ExpertWeights, width: int) -> Tensor:
    """Outputs by tiles of a width, in memory that held NaN before."""
    (_, D, F), storage = weights.down.shape, weights.down.storage
    alignment = align(chosen, E, width)
    hidden = empty_rows(alignment, F, x, storage)
    for tensor in (hidden.values, hidden.scales):
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xFF)  # NaN in every type of these
    outputs = torch.full((*chosen.shape, D), torch.nan, dtype=x.dtype)
    gate_up_launch(rows_of(x, alignment, storage), alignment, weights.gate_up, hidden).run()
    down_launch(hidden, alignment, weights.down, outputs).run()
    return outputs


@pytest.mark.parametrize(
    ("storage", "dtype"),
    [
        ("plain", torch.float32),
        ("plain", torch.float16),
        ("plain", torch.bfloat16),
        ("int4", torch.float16),
        ("int4", torch.bfloat16),
    ],
)
@pytest.mark.parametrize(("T", "D", "F"), [(1, 32, 32), (9, 160, 96), (17, 128, 64)])
def test_experts(storage, dtype, T, D, F):
    gate_up, down = draw_weights(storage, dtype, D, F)
    x, chosen = draw_rows(T, D, dtype)
    result = run(x, chosen, pack_experts(gate_up, down), 16)
    plain = formula(x, [to_plain(w) for w in gate_up], [to_plain(w) for w in down], chosen)
    exact_gate_up, exact_down = ([to_plain(w).double() for w in part] for part in (gate_up, down))
    exact = formula(x.double(), exact_gate_up, exact_down, chosen)
    assert_close_as_plain(result, plain, exact)


def meant(values: Tensor, scales: Tensor) -> Tensor:
    """What e4m3 rows [T, K] with factors [blocks, T] stand for, in float64."""
    wide = scales[:, : len(values)].t().double().repeat_interleave(128, 1)
    return values.double() * wide[:, : values.shape[1]]


@pytest.mark.parametrize(("T", "D", "F"), [(1, 128, 128), (18, 144, 256)])
def test_hidden_numbers_of_fp8_experts_are_rounded_once(T, D, F):
    gate_up, down = draw_weights("fp8", torch.float32, D, F)
    x, chosen = draw_rows(T, D, torch.float32)
    alignment = align(chosen, E, 16)
    hidden = empty_rows(alignment, F, x, "fp8")
    weight = pack_experts(gate_up, down).gate_up
    gate_up_launch(rows_of(x, alignment, "fp8"), alignment, weight, hidden).run()
    exact = hidden_of(meant(*quantize_rows(x)), [to_plain(w).double() for w in gate_up], chosen)
    exact = exact.flatten(0, 1)[alignment.pairs.long()]
    assert hidden.scales is not None
    factors = (exact.unflatten(1, (-1, 128)).abs().amax(2) / 448).repeat_interleave(128, 1)
    error = (meant(hidden.values, hidden.scales) - exact).abs() / factors
    # e4m3 has steps of an eighth of a power of two, and none below 2^-9; fp32 moves a tie a little.
    assert (error <= ((exact.abs() / factors / 16).clamp(min=2.0**-10)) * 1.001).all()


def test_outputs_of_fp8_experts():
    T, D, F = 18, 144, 256
    gate_up, down = draw_weights("fp8", torch.float32, D, F)
    weights = pack_experts(gate_up, down)
    _, chosen = draw_rows(T, D, torch.float32)
    alignment = align(chosen, E, 16)
    values, scales = quantize_rows(torch.randn(T * A, F, generator=torch.Generator().manual_seed(1)))
    outputs = torch.full((T, A, D), torch.nan)
    down_launch(Rows(values=values, scales=scales), alignment, weights.down, outputs).run()
    hidden = torch.empty(T * A, F, dtype=torch.float64)
    hidden[alignment.pairs.long()] = meant(values, scales)
    plain = torch.stack([to_plain(w) for w in down])[chosen]
    exact = torch.einsum("taf,tadf->tad", hidden.view(T, A, F), plain.double())
    near = torch.einsum("taf,tadf->tad", hidden.view(T, A, F).float(), plain)
    assert_close_as_plain(outputs, near, exact)


STORAGES = [("plain", torch.float16), ("int4", torch.bfloat16), ("fp8", torch.bfloat16)]


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_tiles_of_every_width_have_equal_bits(storage, dtype):
    F = 128 if storage == "fp8" else 32
    x, chosen = draw_rows(21, 64, dtype)
    weights = pack_experts(*draw_weights(storage, dtype, 64, F))
    widths = [width for kind, width in TILES if kind == storage]
    first, *others = [run(x, chosen, weights, width) for width in widths]
    assert not first.isnan().any()
    assert others
    assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_a_token_alone_or_elsewhere_has_the_bits_that_it_has_in_a_batch(storage, dtype):
    F = 128 if storage == "fp8" else 32
    x, chosen = draw_rows(19, 160, dtype)
    weights = pack_experts(*draw_weights(storage, dtype, 160, F))
    together = run(x, chosen, weights, 16)
    assert torch.equal(run(x[7:8], chosen[7:8].contiguous(), weights, 16)[0], together[7])
    turned = run(x.flip(0), chosen.flip(0).contiguous(), weights, 16).flip(0)
    assert torch.equal(turned, together)


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_one_expert_may_get_every_token(storage, dtype):
    F = 128 if storage == "fp8" else 32
    x, _ = draw_rows(33, 64, dtype)
    weights = pack_experts(*draw_weights(storage, dtype, 64, F))
    outputs = run(x, torch.full((33, 1), 3), weights, 16)
    assert torch.equal(outputs[32:], run(x[32:], torch.full((1, 1), 3), weights, 16))
    assert not outputs.isnan().any()


def test_the_interface_gives_what_its_launches_give():
    x, chosen = draw_rows(5, 64, torch.float32)
    weights = pack_experts(*draw_weights("int4", torch.float32, 64, 32))
    choice = Choice(experts=chosen.t().contiguous().t(), weights=torch.ones(5, A))
    assert torch.equal(experts(x, choice, weights), run(x, chosen, weights, 16))


def test_no_tokens_are_no_work():
    weights = pack_experts(*draw_weights("plain", torch.float32, 64, 32))
    choice = Choice(experts=torch.empty(0, A, dtype=torch.int64), weights=torch.empty(0, A))
    assert experts(torch.empty(0, 64), choice, weights).shape == (0, A, 64)


def test_weights_stored_differently_are_refused():
    int4, fp8 = maker("int4", torch.float32, 0)(64, 32), maker("fp8", torch.float32, 0)(64, 32)
    with pytest.raises(ValueError, match="stored differently"):
        pack_experts([int4, fp8], [int4, int4])


def test_a_block_of_factors_for_both_gate_and_up_is_refused():
    with pytest.raises(ValueError, match="64 gate outputs end inside a block"):
        pack_experts([maker("fp8", torch.float32, 0)(128, 32)], [maker("fp8", torch.float32, 0)(32, 64)])


@pytest.mark.parametrize(("num_pairs", "width"), [(0, 16), (8, 16), (6144, 16), (6145, 32), (65536, 128)])
def test_a_tile_is_as_wide_as_what_an_expert_gets_on_average(num_pairs, width):
    assert tile_width(num_pairs, 384, "int4") == width
