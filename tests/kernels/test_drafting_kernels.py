"""The kernels for guesses give the reference's logits, but for rounding."""

import random

import pytest
import torch

from outrider.kernels import BACKENDS, DRAFTING
from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import Driver, Sequence

CONFIGS = {
    "grouped": llama_config(max_position_embeddings=2048),
    "one key": llama_config(num_key_value_heads=1, max_position_embeddings=2048),
    "latent": deepseek_config(max_position_embeddings=2048),
}


@pytest.fixture(params=CONFIGS, scope="module")
def directory(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), CONFIGS[request.param])


def texts() -> list[Sequence]:
    rng = random.Random(0)
    return [Sequence(rng.choices(range(VOCAB_SIZE), k=length)) for length in (5, 40, 90, 600)]


def logits(model: Transformer) -> torch.Tensor:
    """Computes the texts in mixed steps: pieces of many sizes, one token at a time at the end."""
    driver, sequences, rows = Driver(model), texts(), []
    for num_rows in (1, 4, 33, 80, 470, 1, 1):
        work = [(s, min(num_rows, len(s.token_ids) - s.num_computed)) for s in sequences]
        rows += driver.step([(sequence, count) for sequence, count in work if count])
    return torch.cat(rows)


def test_logits_are_the_references_but_for_rounding(directory):
    found = logits(Transformer.load(directory, backend=DRAFTING))
    reference = logits(Transformer.load(directory))
    torch.testing.assert_close(found, reference, rtol=1e-4, atol=1e-4)


def test_logits_in_bf16_are_the_references_but_for_rounding(directory):
    exact = logits(Transformer.load(directory, dtype=torch.float32))
    found = logits(Transformer.load(directory, dtype=torch.bfloat16, backend=DRAFTING))
    reference = logits(Transformer.load(directory, dtype=torch.bfloat16))
    assert (found - exact).square().mean() <= 2 * (reference - exact).square().mean()


def test_no_group_may_serve_with_them():
    assert DRAFTING not in BACKENDS
