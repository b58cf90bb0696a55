"""One forward pass: what it reports beside logits, and what it leaves alone."""

import pytest
import torch

from outrider.model.batch import ForwardBatch, Span
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import BLOCK_SIZE, Driver, Sequence


@pytest.fixture(scope="module")
def moe(tmp_path_factory) -> Transformer:
    return Transformer.load(write_checkpoint(tmp_path_factory.mktemp("moe"), deepseek_config()))


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Transformer:
    return Transformer.load(write_checkpoint(tmp_path_factory.mktemp("dense"), llama_config()))


def test_one_token_wakes_its_own_number_of_experts_in_every_moe_layer(moe):
    driver = Driver(moe)
    driver.logits([5])
    assert driver.num_distinct_experts == [3, 3]


def test_many_tokens_wake_no_more_experts_than_there_are(moe):
    driver = Driver(moe)
    driver.logits(list(range(VOCAB_SIZE)))
    assert all(3 < n <= 8 for n in driver.num_distinct_experts)


def test_a_dense_model_reports_no_experts(dense):
    driver = Driver(dense)
    driver.logits([5])
    assert driver.num_distinct_experts == []


def test_a_step_that_wants_no_logits_gives_none_and_still_fills_the_cache(moe):
    cache = moe.new_kv_cache(1, BLOCK_SIZE)
    batch = ForwardBatch(
        token_ids=torch.tensor([1, 2]),
        positions=torch.tensor([0, 1]),
        slots=torch.tensor([0, 1]),
        spans=(Span(first_row=0, num_rows=2, num_context=2, block_ids=[0]),),
        logit_rows=torch.zeros(0, dtype=torch.int64),
    )
    assert moe.forward(batch, cache).logits.shape == (0, VOCAB_SIZE)
    assert all(layer[:2].any() and not layer[2:].any() for layer in cache.layers)


def test_logits_are_given_in_the_order_asked_for(moe):
    cache = moe.new_kv_cache(1, BLOCK_SIZE)
    batch = ForwardBatch(
        token_ids=torch.tensor([1, 2, 3]),
        positions=torch.arange(3),
        slots=torch.arange(3),
        spans=(Span(first_row=0, num_rows=3, num_context=3, block_ids=torch.tensor([0])),),
        logit_rows=torch.tensor([2, 0]),
    )
    assert torch.equal(moe.forward(batch, cache).logits, Driver(moe).logits([1, 2, 3])[[2, 0]])


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_the_cache_takes_the_bytes_that_were_announced(name, request):
    model = request.getfixturevalue(name)
    layers = model.new_kv_cache(3, BLOCK_SIZE).layers
    assert sum(layer.nbytes for layer in layers) == 3 * model.kv_bytes_per_block(BLOCK_SIZE)


def test_positions_at_the_end_of_long_contexts_are_told_apart(moe):
    driver = Driver(moe)
    sequence = Sequence([7] * 600)
    rows = driver.step([(sequence, 600)])[0]
    assert not torch.equal(rows[-1], rows[-2])
