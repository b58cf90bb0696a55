"""A network over 2 and 4 processes computes what one computes, and each row's bits are its own there too."""

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.model.checkpoint import Checkpoint
from outrider.model.distributed_ranks import DistributedRanks
from outrider.model.errors import ModelError
from outrider.model.placement import Move, Placement
from outrider.model.transformer import Transformer
from tests.unit.model.quantized_models import fp8_config, fp8_section, int4_config, int4_section, write_pair
from tests.unit.model.random_models import (
    VOCAB_SIZE,
    deepseek_config,
    interpreted_config,
    llama_config,
    write_checkpoint,
)
from tests.unit.model.rank_group import run_ranks
from tests.unit.model.sequences import Driver, Sequence

GROUPS = (2, 4)
TINY = Path(__file__).parents[3] / "models" / "tiny"
MOE = deepseek_config(num_hidden_layers=4, first_k_dense_replace=2)
PLAIN = {
    "moe": MOE,
    "moe without shared": deepseek_config(n_shared_experts=0, q_lora_rank=None, num_hidden_layers=2),
    "grouped": llama_config(num_attention_heads=8, num_key_value_heads=4),
    "tied": llama_config(num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True),
}
QUANTIZED = {
    "int4": int4_config(
        num_attention_heads=8,
        intermediate_size=128,
        moe_intermediate_size=128,
        num_hidden_layers=2,
        quantization_config=int4_section(ignore=["lm_head"]),
    ),
    "fp8": fp8_config(
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=8,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
        kv_lora_rank=64,
        q_lora_rank=128,
        intermediate_size=512,
        moe_intermediate_size=512,
        quantization_config=fp8_section(),
    ),
}
MODELS = ("tiny", *PLAIN, *QUANTIZED)
MIXED = ("moe", "grouped")
SHUFFLED = "shuffled"
COPIES = "with copies"
MOVED = "after moves"
PROMPT = [(7 * i + i // 11) % VOCAB_SIZE for i in range(150)]  # beyond one attention split


def directory_of(root: Path, kind: str) -> Path:
    return TINY if kind == "tiny" else root / kind / "quantized" if kind in QUANTIZED else root / kind


def load(root: Path, kind: str, **options: Any) -> Transformer:
    return Transformer.load(directory_of(root, kind), dtype=torch.float32, **options)


def mixes(model: Transformer, seed: int) -> list[bool]:
    """Whether each sequence of a crowd, cut at random, has the bits that it has alone."""
    source = random.Random(seed)
    crowd = [PROMPT[source.randrange(60) :][: source.choice([1, 2, 17, 40, 90])] for _ in range(4)]
    driver, sequences = Driver(model, seed=seed), [Sequence(token_ids) for token_ids in crowd]
    parts: list[list[torch.Tensor]] = [[] for _ in crowd]
    while running := [i for i, s in enumerate(sequences) if s.num_computed < len(s.token_ids)]:
        running = source.sample(running, source.randint(1, len(running)))
        left = {i: len(sequences[i].token_ids) - sequences[i].num_computed for i in running}
        work = [(sequences[i], min(left[i], source.choice([1, 1, 7, 33]))) for i in running]
        for i, rows in zip(running, driver.step(work), strict=True):
            parts[i].append(rows)
    return [
        torch.equal(torch.cat(rows), Driver(model).logits(token_ids))
        for token_ids, rows in zip(crowd, parts, strict=True)
    ]


def placements(num_ranks: int) -> dict[str, Placement]:
    """Placements of the experts of MOE."""
    balanced = Placement.balanced(num_layers=2, num_experts=8, num_ranks=num_ranks)
    rows = [random.Random(layer).sample(range(8), 8) for layer in range(2)]
    copies = Placement.balanced(num_layers=2, num_experts=8, num_redundant=4, num_ranks=num_ranks)
    return {
        SHUFFLED: replace(balanced, experts=torch.tensor(rows).numpy()),
        COPIES: copies,
        # Expert 6 gets three copies and expert 0 keeps one, on another rank.
        MOVED: copies.after([Move(layer=1, slot=0, expert=6), Move(layer=1, slot=9, expert=6)]),
    }


def move(model: Transformer) -> None:
    """Moves what makes of COPIES what MOVED is; weights are read in another thread, as a worker does."""
    moves = [Move(layer=1, slot=0, expert=6), Move(layer=1, slot=9, expert=6)]
    read = {}
    own = [each for each in moves if model.owns(each)]
    reader = threading.Thread(target=lambda: read.update({each: model.read_expert(each) for each in own}))
    reader.start()
    reader.join()
    model.place(moves, read)


def refusal(ranks: DistributedRanks, root: Path) -> str:
    """What loading says where rank 1 computes with another number of threads."""
    torch.set_num_threads(1 + ranks.rank % 2)
    try:
        load(root, "moe", ranks=ranks)
    except ModelError as error:
        return str(error)
    finally:
        torch.set_num_threads(1)
    return ""


def check(ranks: DistributedRanks, root: Path) -> dict[str, Any]:
    """What a rank finds; everything is computed by all ranks in lockstep."""
    found: dict[str, Any] = {"refusal": refusal(ranks, root)}
    for kind in MODELS:
        read: list[tuple[int, int]] = []
        model = load(root, kind, ranks=ranks, progress=lambda *numbers, read=read: read.append(numbers))
        driver, calls = Driver(model), ranks.traffic.num_calls
        found[kind] = {
            "logits": driver.logits(PROMPT),
            "experts": driver.num_distinct_experts,
            "calls": ranks.traffic.num_calls - calls,
            "read": read[-1],
            "id": model.numerics_id,
            "kv": model.kv_bytes_per_block(16),
            "mixes": mixes(model, seed=1) if kind in MIXED else [],
        }
    found |= check_placements(ranks, root)
    if ranks.num_ranks == 2:
        model = load(root, "interpreted", ranks=ranks, backend="triton")
        found["interpreted"] = Driver(model).logits(PROMPT[:3], [1, 2])
    return found


def check_placements(ranks: DistributedRanks, root: Path) -> dict[str, Any]:
    found = {}
    for name, placement in placements(ranks.num_ranks).items():
        model = load(root, "moe", ranks=ranks, placement=placement)
        found[name] = Driver(model).logits(PROMPT)
    model = load(root, "moe", ranks=ranks, placement=placements(ranks.num_ranks)[COPIES])
    driver, sequence = Driver(model), Sequence(PROMPT)
    before = driver.step([(sequence, 70)])[0]
    move(model)
    found["moved between steps"] = torch.cat([before, *driver.step([(sequence, 80)])])
    found["version"] = model.placement.version if model.placement else None
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranks")
    for kind, config in PLAIN.items():
        write_checkpoint(root / kind, config)
    for kind, config in QUANTIZED.items():
        write_pair(root / kind, config, torch.float32)
    config = interpreted_config(first_k_dense_replace=0, num_hidden_layers=1, vocab_size=VOCAB_SIZE)
    write_checkpoint(root / "interpreted", config)
    return root


@pytest.fixture(scope="module", params=GROUPS)
def found(request: pytest.FixtureRequest, root: Path) -> list[dict[str, Any]]:
    """What each rank of a group found."""
    return run_ranks(request.param, check, root)


@pytest.fixture(scope="module")
def alone(root: Path) -> dict[str, Driver]:
    """Each model in one process."""
    return {kind: Driver(load(root, kind)) for kind in MODELS}


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_one_rank_but_for_rounding(kind, found, alone):
    expected = alone[kind].logits(PROMPT)
    torch.testing.assert_close(found[0][kind]["logits"], expected, rtol=1e-4, atol=1e-4)
    assert alone[kind].num_distinct_experts == found[0][kind]["experts"]


@pytest.mark.parametrize("kind", MODELS)
def test_every_rank_has_the_same_bits_and_the_same_id(kind, found, alone):
    for other in found[1:]:
        assert torch.equal(other[kind]["logits"], found[0][kind]["logits"])
    assert len({rank[kind]["id"] for rank in found}) == 1
    assert found[0][kind]["id"] != alone[kind].runner.model.numerics_id


@pytest.mark.parametrize("kind", MIXED)
def test_a_crowd_in_chunks_has_the_bits_of_each_sequence_alone(kind, found):
    assert [rank[kind]["mixes"] for rank in found] == [[True] * 4] * len(found)


@pytest.mark.parametrize("placed", [SHUFFLED, COPIES, MOVED, "moved between steps"])
def test_a_placement_shows_in_no_bit(placed, found):
    for rank in found:
        assert torch.equal(rank[placed], found[0]["moe"]["logits"])
    assert {rank["version"] for rank in found} == {1}


def test_each_rank_reads_its_own_experts_and_parts_alone(found, root):
    for kind in ("tiny", "moe", "int4", "fp8"):
        tensors = Checkpoint.open(directory_of(root, kind)).tensors
        whole = sum(tensor.num_bytes for tensor in tensors.values())
        routed = sum(tensor.num_bytes for name, tensor in tensors.items() if ".experts." in name)
        for rank in found:
            done, total = rank[kind]["read"]
            assert done == total
            # Of the rest it reads all that is not split, and less than all.
            assert routed / len(found) < total < whole - routed + routed / len(found)


def test_grouped_attention_caches_its_own_heads_alone(found, alone):
    assert found[0]["grouped"]["kv"] * len(found) == alone["grouped"].runner.model.kv_bytes_per_block(16)
    # Latents are whole on each rank.
    assert found[0]["moe"]["kv"] == alone["moe"].runner.model.kv_bytes_per_block(16)


def test_two_exchanges_for_each_layer_and_one_for_the_head_are_counted(found, alone):
    for kind in MODELS:
        assert found[0][kind]["calls"] == 2 * alone[kind].runner.model.config.num_layers + 1


def test_ranks_that_compute_otherwise_are_refused_by_all(found):
    assert {rank["refusal"] for rank in found} == {"rank 1 has num_threads 2, and rank 0 1"}


def test_gpu_kernels_exchange_all_pairs_to_the_same_end(found, root):
    if len(found) == 2:
        expected = Driver(load(root, "interpreted", backend="triton")).logits(PROMPT[:3], [1, 2])
        for rank in found:
            torch.testing.assert_close(rank["interpreted"], expected, rtol=1e-4, atol=1e-4)
