"""What each rank reads is its part of a layer: all together make the whole, and what has none is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels.weights import to_plain
from outrider.model.checkpoint import Checkpoint
from outrider.model.config import ModelConfig
from outrider.model.errors import ModelError
from outrider.model.expert_exchange import message, stow_all, stow_own
from outrider.model.expert_slots import SlotTable
from outrider.model.placement import Placement
from outrider.model.ranks import Alone
from outrider.model.reader import Meter, Reader
from outrider.model.shard import SPLIT_BY_COLUMNS, SPLIT_BY_ROWS, Shard, num_bytes, parts_to_read
from outrider.model.transformer import Transformer
from outrider.model.weights import linear_storages
from tests.unit.model.quantized_models import fp8_config, int4_config, int4_section, write_pair
from tests.unit.model.random_models import deepseek_config, llama_config, write_checkpoint

INT4 = int4_section(ignore=["lm_head"])
CONFIGS = {
    "plain": deepseek_config(),
    "grouped": llama_config(),
    "int4": int4_config(num_attention_heads=8, moe_intermediate_size=64, intermediate_size=128)
    | {"quantization_config": INT4},
    "fp8": fp8_config(
        hidden_size=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        kv_lora_rank=64,
        intermediate_size=256,
        moe_intermediate_size=256,
    )
    | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1},
}


def readers(directory, num_ranks: int) -> list[Reader]:
    """What each rank of a group reads with."""
    config, checkpoint = ModelConfig.from_directory(directory), Checkpoint.open(directory)
    shards = [Shard(ranks=Alone(rank=rank, num_ranks=num_ranks)) for rank in range(num_ranks)]
    if config.moe:
        num_layers = config.num_layers - config.num_dense_layers
        placement = Placement.balanced(
            num_layers=num_layers, num_experts=config.moe.num_experts, num_ranks=num_ranks
        )
        shards = [replace(shard, placement=placement) for shard in shards]
    return [
        Reader(
            checkpoint=checkpoint,
            dtype=torch.float32,
            device=torch.device("cpu"),
            meter=Meter(total=num_bytes(parts, checkpoint), report=None),
            parts=parts,
        )
        for parts in (parts_to_read(config, shard) for shard in shards)
    ]


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_parts_of_all_ranks_make_the_whole_weight(kind, tmp_path):
    config = CONFIGS[kind]
    directory = (
        write_pair(tmp_path, config, torch.float32)[0]
        if "quantization_config" in config
        else write_checkpoint(tmp_path, config)
    )
    (whole,), split = readers(directory, 1), readers(directory, 2)
    for linear in linear_storages(ModelConfig.from_directory(directory)):
        name = linear.rpartition(".")[2]
        if ".experts." in linear or name not in (*SPLIT_BY_ROWS, *SPLIT_BY_COLUMNS):
            continue
        parts = [to_plain(reader.weight(linear)) for reader in split]
        assert torch.equal(
            torch.cat(parts, dim=int(name in SPLIT_BY_COLUMNS)), to_plain(whole.weight(linear))
        )
    heads = [reader("lm_head.weight") for reader in split]
    assert torch.equal(torch.cat(heads), whole("lm_head.weight"))


def test_bytes_to_read_are_those_that_are_read(tmp_path):
    directory = write_pair(tmp_path, CONFIGS["int4"], torch.float32)[0]
    for reader in readers(directory, 2):
        for name in reader.parts:
            reader(name, reader.checkpoint.read(name).dtype)
        assert reader.meter.done == reader.meter.total


def test_every_expert_is_read_by_the_ranks_that_hold_it(tmp_path):
    directory = write_checkpoint(tmp_path, deepseek_config())
    held = [{name for name in reader.parts if ".experts." in name} for reader in readers(directory, 2)]
    assert not held[0] & held[1]
    assert held[0] | held[1] == {name for name in Checkpoint.open(directory).tensors if ".experts." in name}


@pytest.mark.parametrize(
    ("config", "num_ranks", "message"),
    [
        (deepseek_config(), 3, "4 attention heads cannot be split over 3 ranks"),
        (llama_config(num_attention_heads=8), 4, "2 key and value heads cannot be split over 4 ranks"),
        (llama_config(intermediate_size=81), 2, r"81 outputs of model\.layers\.0\.mlp\.gate_proj cannot be"),
        (deepseek_config(n_routed_experts=9, n_group=1, topk_group=1), 2, "9 experts and 0 redundant ones"),
    ],
)
def test_what_cannot_be_split_is_named_before_anything_is_read(config, num_ranks, message, tmp_path):
    read: list[int] = []
    with pytest.raises(ModelError, match=message):
        Transformer.load(
            write_checkpoint(tmp_path, config),
            ranks=Alone(rank=0, num_ranks=num_ranks),
            progress=lambda done, total: read.append(done),
        )
    assert read == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            int4_config(quantization_config=INT4),
            r"96 inputs of model\.layers\.0\.mlp\.down_proj cannot be split in multiples of 32 over 2 ranks",
        ),
        (
            CONFIGS["fp8"] | {"intermediate_size": 192},
            r"192 outputs of model\.layers\.0\.mlp\.gate_proj cannot be split in multiples of 128 over 2",
        ),
    ],
    ids=["int4", "fp8"],
)
def test_a_quantized_weight_is_split_into_whole_groups_alone(config, message, tmp_path):
    directory = write_pair(tmp_path, config, torch.float32)[0]
    with pytest.raises(ModelError, match=message):
        Transformer.load(directory, ranks=Alone(rank=1, num_ranks=2))


@given(
    num_ranks=st.integers(1, 5),
    owners=st.lists(st.integers(0, 4), max_size=40),
    travels=st.sampled_from(["own", "all"]),
    has_shared=st.booleans(),
)
def test_every_pair_is_found_where_its_owner_has_put_it(num_ranks, owners, travels, has_shared):
    owned = torch.tensor([owner % num_ranks for owner in owners], dtype=torch.int64)
    messages, stowages = [], []
    for rank in range(num_ranks):
        # What a rank computes of a pair: its own right, of the others' nothing.
        outputs = torch.arange(len(owned))[:, None].where(owned[:, None] == rank, -1)
        shared = torch.full((3, 1), 100 + rank) if has_shared else None
        ranks = Alone(rank=rank, num_ranks=num_ranks)
        stowages.append(stow_own(owned, ranks) if travels == "own" else stow_all(owned))
        messages.append(message(outputs, stowages[-1], shared))
    gathered = torch.stack(messages)
    for stowage in stowages:
        assert gathered[owned, stowage.places].flatten().tolist() == list(range(len(owned)))
        if has_shared:
            assert gathered[:, stowage.size :, 0].tolist() == [[100 + rank] * 3 for rank in range(num_ranks)]


@given(num_experts=st.integers(1, 12), num_redundant=st.integers(0, 6), data=st.data())
def test_a_choice_is_served_by_a_copy_of_its_expert_and_by_each_in_turn(num_experts, num_redundant, data):
    num_redundant = min(num_redundant, num_experts)
    further = st.lists(st.integers(0, num_experts - 1), min_size=num_redundant, max_size=num_redundant)
    tables = [
        np.array(data.draw(st.permutations([*range(num_experts), *data.draw(further)]))) for _ in range(2)
    ]
    table = SlotTable(tables[0], num_experts, torch.device("cpu"))
    for placed in tables:
        table.fill(placed)
        experts = torch.arange(num_experts).expand(24, -1)
        slots = table.of(experts).numpy()
        assert (placed[slots] == experts.numpy()).all()
        for expert in range(num_experts):
            copies = np.flatnonzero(placed == expert)
            assert slots[:, expert].tolist() == [copies[row % len(copies)] for row in range(24)]
        assert table.of(torch.full((2, 1), num_experts)).tolist() == [[len(placed)]] * 2
