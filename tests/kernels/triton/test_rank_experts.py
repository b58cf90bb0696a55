"""Routed experts of one rank: what other ranks compute is no work, and experts are replaced in place."""

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.triton.align import align
from outrider.kernels.triton.experts import (
    down_launch,
    empty_rows,
    experts,
    gate_up_launch,
    pack_experts,
    replace_expert,
    rows_of,
    tile_width,
)
from outrider.kernels.weights import to_plain
from outrider.model.transfer import tensors_of
from tests.kernels.triton.test_experts import E, draw_rows, draw_weights, maker

D, F = 160, 128
STORAGES = [
    ("plain", torch.float32),
    ("int4", torch.float16),
    ("int4", torch.bfloat16),
    ("fp8", torch.bfloat16),
]
NUM_OWN = E // 2


def choice_of(chosen: Tensor) -> Choice:
    return Choice(experts=chosen, weights=torch.ones(chosen.shape))


def own(chosen: Tensor, rank: int) -> Tensor:
    """The choices as a rank of two has them: those of the other are behind its own experts."""
    local = chosen - rank * NUM_OWN
    return local.where((local >= 0) & (local < NUM_OWN), NUM_OWN)


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_the_pairs_of_both_ranks_have_the_bits_that_they_have_on_one(storage, dtype):
    gate_up, down = draw_weights(storage, dtype, D, F)
    x, chosen = draw_rows(5, D, dtype)
    together = experts(x, choice_of(chosen), pack_experts(gate_up, down))
    for rank in range(2):
        part = slice(rank * NUM_OWN, (rank + 1) * NUM_OWN)
        packed = pack_experts(gate_up[part], down[part], num_slots=E)
        found = experts(x, choice_of(own(chosen, rank)), packed)
        is_own = own(chosen, rank) < NUM_OWN
        assert is_own.any()
        assert torch.equal(found[is_own], together[is_own])


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_one_pair_of_many_has_its_bits(storage, dtype):
    gate_up, down = draw_weights(storage, dtype, D, F)
    packed = pack_experts(gate_up, down)
    x, _ = draw_rows(18, D, dtype)
    chosen = torch.full((18, 2), E)
    chosen[16, 1] = 3
    found = experts(x, choice_of(chosen), packed)
    assert torch.equal(found[16, 1], experts(x[16:17], choice_of(torch.tensor([[3]])), packed)[0, 0])


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_a_rank_that_no_token_chooses_computes_nothing(storage, dtype):
    packed = pack_experts(*draw_weights(storage, dtype, D, F))
    x, _ = draw_rows(18, D, dtype)
    alignment = align(torch.full((18, 2), E), E, 16)
    assert not alignment.tiles[:, 2].any()
    hidden, outputs = empty_rows(alignment, F, x, storage), torch.full((18, 2, D), 7.0, dtype=dtype)
    hidden.values.view(torch.uint8).fill_(7)
    gate_up_launch(rows_of(x, alignment, storage), alignment, packed.gate_up, hidden).run()
    down_launch(hidden, alignment, packed.down, outputs).run()
    assert (hidden.values.view(torch.uint8) == 7).all()
    assert (outputs == 7).all()
    assert experts(x, choice_of(torch.full((18, 2), E)), packed).shape == (18, 2, D)


def test_tiles_are_as_wide_as_what_a_slot_of_all_ranks_gets_on_average():
    # A chunk of 2,048 tokens, of which eight ranks with 48 slots each compute their pairs.
    assert tile_width(2048 * 8, 384, "int4") == 64
    packed = pack_experts(*draw_weights("plain", torch.float32, 64, 32), num_slots=384)
    assert (packed.num_slots, packed.down.shape[0]) == (384, E)


@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_an_expert_is_replaced_where_it_lies(storage, dtype):
    gate_up, down = draw_weights(storage, dtype, D, F)
    make = maker(storage, dtype, seed=5)
    other = make(2 * F, D), make(D, F)
    packed = pack_experts(gate_up, down)
    places = [tensor.data_ptr() for tensor in tensors_of(packed)]
    replace_expert(packed, 2, *other)
    expected = pack_experts([*gate_up[:2], other[0], gate_up[3]], [*down[:2], other[1], down[3]])
    assert [tensor.data_ptr() for tensor in tensors_of(packed)] == places
    for found, tensor in zip(tensors_of(packed), tensors_of(expected), strict=True):
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_a_stored_weight_replaces_a_plain_one_where_a_layers_experts_are_not_stored_alike():
    gate_up, down = draw_weights("int4", torch.float32, D, F)
    packed = pack_experts([to_plain(w) for w in gate_up], [to_plain(w) for w in down])
    replace_expert(packed, 0, gate_up[3], down[3])
    assert torch.equal(packed.gate_up.values[0], to_plain(gate_up[3]))
    assert torch.equal(packed.down.values[0], to_plain(down[3]))


def test_a_weight_that_is_stored_or_shaped_otherwise_replaces_none():
    packed = pack_experts(*draw_weights("int4", torch.float32, D, F))
    fp8, narrow = maker("fp8", torch.float32, 0), maker("int4", torch.float32, 0)
    with pytest.raises(ValueError, match="fp8"):
        replace_expert(packed, 0, fp8(2 * F, D), fp8(D, F))
    with pytest.raises(ValueError, match="cannot replace"):
        replace_expert(packed, 0, narrow(2 * F, 128), narrow(128, F))
