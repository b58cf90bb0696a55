"""The network agrees with the transformers library's in fp32."""

import pytest
import torch

from outrider.model.transformer import Transformer
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, llama_config, write_checkpoint
from tests.unit.model.sequences import BLOCK_SIZE, Driver, Sequence

MAX_RELATIVE_ERROR = 1e-4
NUM_TOKENS = 150
NO_STRETCH = {"rope_scaling": None}
CONFIGS = {
    "groups, bias, scaling, yarn": deepseek_config(),
    "one group, no yarn": deepseek_config(n_group=1, topk_group=1, **NO_STRETCH),
    "several dense layers": deepseek_config(num_hidden_layers=4, first_k_dense_replace=3),
    "uncompressed queries": deepseek_config(q_lora_rank=None),
    "two shared experts, weights not normalized": deepseek_config(n_shared_experts=2, norm_topk_prob=False),
    "halves instead of neighbours in rotary": deepseek_config(rope_interleave=False),
    "yarn of other magnitudes": deepseek_config(
        rope_scaling=deepseek_config()["rope_scaling"] | {"mscale": 0.7, "beta_fast": 4.0, "factor": 40.0}
    ),
    "llama": llama_config(),
    "llama, every head its own key, tied embeddings": llama_config(
        num_key_value_heads=6, tie_word_embeddings=True
    ),
    "llama 3 stretch": llama_config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory):
    """A model of ours and the library's, from the same directory."""
    transformers = pytest.importorskip("transformers")
    directory = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), CONFIGS[request.param], seed=7)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    return Transformer.load(directory), theirs.float().eval()


@pytest.fixture(scope="module")
def expected(pair):
    """Token ids and the library's logits of all of them."""
    token_ids = torch.randint(VOCAB_SIZE, (NUM_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        return token_ids, pair[1](torch.tensor([token_ids])).logits[0]


def relative_error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    return ((logits - reference).abs().max() / reference.abs().max()).item()


def test_logits_of_a_prompt_agree(pair, expected):
    token_ids, reference = expected
    assert relative_error(Driver(pair[0]).logits(token_ids), reference) < MAX_RELATIVE_ERROR


def test_logits_of_a_prompt_in_chunks_agree(pair, expected):
    token_ids, reference = expected
    logits = Driver(pair[0]).logits(token_ids, [1, 40, 1, 1, 100, 7])
    assert relative_error(logits, reference) < MAX_RELATIVE_ERROR


def test_logits_after_a_cached_prefix_agree(pair, expected):
    token_ids, reference = expected
    driver = Driver(pair[0])
    first = Sequence(token_ids)
    driver.step([(first, NUM_TOKENS)])
    second = Sequence(token_ids, num_computed=4 * BLOCK_SIZE, block_ids=first.block_ids[:4])
    logits = driver.step([(second, NUM_TOKENS - 4 * BLOCK_SIZE)])[0]
    assert relative_error(logits, reference[4 * BLOCK_SIZE :]) < MAX_RELATIVE_ERROR
