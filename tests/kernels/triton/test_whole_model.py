"""A whole network on kernels for GPUs, interpreted: torch's logits, and bits that no company changes."""

import pytest
import torch

from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import Driver, Sequence

MODELS = {
    "latent-moe": deepseek_config(
        hidden_size=128, intermediate_size=128, num_hidden_layers=2, moe_intermediate_size=64
    ),
    "grouped-dense": llama_config(hidden_size=128, num_hidden_layers=2),
}
NUM_TOKENS = 16


@pytest.fixture(scope="module", params=MODELS)
def directory(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param), MODELS[request.param])


@pytest.fixture(scope="module")
def model(directory) -> Transformer:
    return Transformer.load(directory, backend="triton", device="cpu")


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCAB_SIZE, (NUM_TOKENS,), generator=generator).tolist()


@pytest.fixture(scope="module")
def whole(model, token_ids) -> torch.Tensor:
    return Driver(model).logits(token_ids)


def test_logits_are_torchs_but_for_rounding(directory, token_ids, whole):
    reference = Driver(Transformer.load(directory)).logits(token_ids)
    torch.testing.assert_close(whole, reference, rtol=0, atol=1e-4)
    best = reference.topk(2).values
    is_clear = best[:, 0] - best[:, 1] > 2 * (whole - reference).abs().amax(dim=1)
    assert is_clear.sum() > NUM_TOKENS / 2
    assert torch.equal(whole.argmax(dim=1)[is_clear], reference.argmax(dim=1)[is_clear])


def test_a_sequence_in_chunks_and_company_has_the_bits_it_has_whole_and_alone(model, token_ids, whole):
    driver, sequence = Driver(model, seed=1), Sequence(token_ids[:9])
    first, second = Sequence(token_ids[12:]), Sequence(token_ids[14:])
    rest = driver.step([(first, 4), (sequence, 8), (second, 2)])[1]
    last = driver.step([(sequence, 1)])[0]
    assert torch.equal(torch.cat([rest, last]), whole[:9])
