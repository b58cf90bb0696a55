"""The training network agrees with itself step by step, and with an independent implementation."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from training.batches import lay_out
from training.chat import MODEL_DIR, special_id
from training.documents import document
from training.export import load_checkpoint
from training.generate import Cache, step
from training.network import Network


@pytest.fixture(scope="module")
def network() -> Network:
    return load_checkpoint(MODEL_DIR)


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    return document(Random(5), tokenizer).token_ids[:40]


@torch.inference_mode()
def logits(network: Network, token_ids: list[int]) -> torch.Tensor:
    ids = torch.tensor(token_ids)
    hidden, _ = network(ids, torch.arange(len(ids)), [(1, len(ids))])
    return network.lm_head(hidden)


@torch.inference_mode()
def test_generation_computes_what_training_computes(network: Network, token_ids: list[int]) -> None:
    caches = [Cache(1, len(token_ids), layer.self_attn) for layer in network.stack()]
    rows = [step(network, caches, torch.tensor([token_id]), i) for i, token_id in enumerate(token_ids)]
    torch.testing.assert_close(torch.cat(rows), logits(network, token_ids), atol=2e-3, rtol=1e-3)


@torch.inference_mode()
def test_a_row_does_not_see_its_neighbours_or_its_padding(network: Network) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    rng = Random(6)
    documents = [document(rng, tokenizer) for _ in range(4)]
    batch = lay_out(documents, special_id(tokenizer, "[PAD]"))
    hidden, _ = network(batch.token_ids, batch.positions, batch.blocks)
    shortest = min((item.token_ids for item in documents), key=len)
    together = network.lm_head(hidden[: len(shortest)])
    torch.testing.assert_close(together, logits(network, shortest), atol=2e-3, rtol=1e-3)


@torch.inference_mode()
def test_transformers_computes_the_same_logits(network: Network, token_ids: list[int]) -> None:
    transformers = pytest.importorskip("transformers")
    model, report = transformers.DeepseekV3ForCausalLM.from_pretrained(
        Path(MODEL_DIR), dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    expected = model.eval()(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(logits(network, token_ids), expected, atol=2e-3, rtol=1e-3)
