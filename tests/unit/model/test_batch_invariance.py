"""A row's logits are the same bits whatever shares its batch and however its sequence was cut."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.model.kv_cache import write_tokens
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import BLOCK_SIZE, Driver, Sequence

MODELS = {
    "latent-moe": deepseek_config(),
    "latent-moe-one-group": deepseek_config(q_lora_rank=None, n_group=1, topk_group=1, n_shared_experts=0),
    "grouped-dense": llama_config(),
}
MAX_NUM_TOKENS = 300  # beyond two attention splits
few_examples = settings(max_examples=8, deadline=None)
token_lists = st.integers(1, MAX_NUM_TOKENS).flatmap(
    lambda n: st.integers(0, 2**32).map(
        lambda seed: torch.randint(VOCAB_SIZE, (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    )
)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module", params=MODELS)
def model(request, dtype, tmp_path_factory) -> Transformer:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return Transformer.load(write_checkpoint(directory, MODELS[request.param]), dtype=dtype)


def cuts(data: st.DataObject, num_tokens: int) -> list[int]:
    """Chunk sizes that add up to num_tokens; many of one token, as in decoding."""
    chunks = []
    while (rest := num_tokens - sum(chunks)) > 0:
        size = data.draw(st.sampled_from([1, 1, 2, 7, 16, 33, 128, MAX_NUM_TOKENS]))
        chunks.append(min(size, rest) if len(chunks) < 12 else rest)
    return chunks


@few_examples
@given(token_ids=token_lists, data=st.data())
def test_a_chunked_sequence_gives_the_bits_of_a_whole_one(model, token_ids, data):
    whole = Driver(model).logits(token_ids)
    chunked = Driver(model, seed=1).logits(token_ids, cuts(data, len(token_ids)))
    assert torch.equal(chunked, whole)


@few_examples
@given(crowd=st.lists(token_lists, min_size=2, max_size=5), data=st.data())
def test_a_crowd_gives_each_sequence_the_bits_it_has_alone(model, crowd, data):
    driver = Driver(model, seed=2)
    sequences = [Sequence(token_ids) for token_ids in crowd]
    chunks = [cuts(data, len(token_ids)) for token_ids in crowd]
    parts: list[list[torch.Tensor]] = [[] for _ in crowd]
    while any(chunks):
        running = [i for i in data.draw(st.permutations(range(len(crowd)))) if chunks[i]]
        logits = driver.step([(sequences[i], chunks[i].pop(0)) for i in running])
        for i, part in zip(running, logits, strict=True):
            parts[i].append(part)
    for token_ids, rows in zip(crowd, parts, strict=True):
        assert torch.equal(torch.cat(rows), Driver(model).logits(token_ids))


@few_examples
@given(token_ids=token_lists, data=st.data())
def test_a_cached_prefix_gives_the_bits_of_a_computed_one(model, token_ids, data):
    driver = Driver(model, seed=3)
    first = Sequence(token_ids)
    whole = driver.step([(first, len(token_ids))])[0]
    num_cached = BLOCK_SIZE * data.draw(st.integers(0, (len(token_ids) - 1) // BLOCK_SIZE))
    second = Sequence(
        token_ids, num_computed=num_cached, block_ids=first.block_ids[: num_cached // BLOCK_SIZE]
    )
    logits = driver.step([(second, len(token_ids) - num_cached)])[0]
    assert torch.equal(logits, whole[num_cached:])


@few_examples
@given(token_ids=token_lists, data=st.data())
def test_rejected_drafts_leave_no_trace(model, token_ids, data):
    whole = Driver(model).logits(token_ids)
    driver = Driver(model, seed=4)
    sequence = Sequence([])
    rows = []
    for size in cuts(data, len(token_ids)):
        known = token_ids[: sequence.num_computed + size]
        drafts = data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8))
        sequence.token_ids = known + drafts
        rows.append(driver.step([(sequence, size + len(drafts))])[0][:size])
        sequence.num_computed = len(known)
    assert torch.equal(torch.cat(rows), whole)


def test_a_crowd_of_decoding_sequences_gives_each_its_own_bits(model):
    generator = torch.Generator().manual_seed(5)
    crowd = [
        torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist()
        for n in torch.randint(2, 140, (64,), generator=generator).tolist()
    ]
    driver = Driver(model, num_blocks=1024, seed=5)
    sequences = [Sequence(token_ids) for token_ids in crowd]
    driver.step([(sequence, len(sequence.token_ids) - 1) for sequence in sequences])
    last = driver.step([(sequence, 1) for sequence in sequences])
    for token_ids, row in list(zip(crowd, last, strict=True))[::9]:
        assert torch.equal(row[0], Driver(model).logits(token_ids)[-1])


def test_what_an_overflowing_sequence_leaves_in_its_blocks_harms_no_later_owner(model):
    driver = Driver(model, num_blocks=1)
    expected = driver.logits([3, 1, 4])
    for layer in driver.cache.layers:
        poison = torch.full((BLOCK_SIZE, layer.shape[1]), torch.inf, dtype=layer.dtype)
        write_tokens(layer, torch.arange(BLOCK_SIZE), poison)
    again = Driver(model, num_blocks=1)
    again.runner = driver.runner
    assert torch.equal(again.logits([3, 1, 4]), expected)
