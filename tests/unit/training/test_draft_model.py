"""What is trained as a draft model is what the drafter runs."""

import json

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from outrider.model.config import ModelConfig
from outrider.model.transformer import Transformer
from tests.unit.model.sequences import Driver
from training.chat import MODEL_DIR
from training.draft_model import export
from training.llama import Llama, LlamaConfig


def test_the_exported_network_gives_the_logits_of_the_trained_one(tmp_path):
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    config = LlamaConfig(vocab_size=800, hidden_size=32, intermediate_size=48, num_key_value_heads=2)
    network = Llama(config).to(torch.bfloat16).float()
    export(network, tokenizer, tmp_path)
    token_ids = torch.randint(0, 800, (2 * 90,))
    hidden = network(token_ids, torch.arange(90).repeat(2), [(2, 90)])
    expected = network.lm_head(hidden).detach().split(90)
    model = Transformer.load(tmp_path, dtype=torch.float32)
    for tokens, rows in zip(token_ids.split(90), expected, strict=True):
        torch.testing.assert_close(Driver(model).logits(tokens.tolist()), rows, rtol=1e-4, atol=1e-4)


def test_the_shipped_draft_model_fits_the_model_it_drafts_for():
    directory = MODEL_DIR / "draft-model"
    draft, target = ModelConfig.from_directory(directory), ModelConfig.from_directory(MODEL_DIR)
    assert (draft.vocab_size, draft.max_num_positions) == (target.vocab_size, target.max_num_positions)
    assert json.loads((directory / "config.json").read_text())["torch_dtype"] == "bfloat16"
    tensors = load_file(directory / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.nbytes for tensor in tensors.values()) < 2_000_000
