"""What the draft head is trained to do is what it does when it drafts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.draft_head import DraftHead, FeatureProjection
from outrider.model.transformer import Transformer
from training.batches import lay_out
from training.chat import MODEL_DIR, special_id
from training.documents import Document, document
from training.draft_head import draft_vocabulary, export, initialized, load, losses, rows_of
from training.export import load_checkpoint
from training.head_network import HeadNetwork
from training.network import Network

NUM_STEPS = 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def network() -> Network:
    return load_checkpoint(MODEL_DIR)


@pytest.fixture(scope="module")
def draft_ids(tokenizer: Tokenizer) -> torch.Tensor:
    ids, share = draft_vocabulary(tokenizer, 400, num_documents=200)
    assert len(ids.unique()) == 400
    assert share > 0.995
    return ids


@pytest.fixture(scope="module")
def head(network: Network, draft_ids: torch.Tensor) -> HeadNetwork:
    torch.manual_seed(0)
    head = initialized(network, draft_ids)
    # As the exported weights are rounded.
    head.load_state_dict(
        {name: value.to(torch.bfloat16).float() for name, value in head.state_dict().items()}
    )
    return head


def batch_of(rows: range, token_ids: torch.Tensor, tap: Tap | None = None) -> ForwardBatch:
    positions = torch.tensor(rows)
    span = Span(
        first_row=0, num_rows=len(rows), num_context=rows.stop, block_ids=list(range(-(-rows.stop // 16)))
    )
    return ForwardBatch(
        token_ids=token_ids,
        positions=positions,
        slots=positions,
        spans=(span,),
        logit_rows=torch.arange(len(rows)),
        tap=tap,
    )


@torch.inference_mode()
def test_training_computes_what_drafting_computes(
    network: Network, head: HeadNetwork, draft_ids: torch.Tensor, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export(head, draft_ids, tmp_path)
    again, ids = load(tmp_path, network)
    assert torch.equal(ids, draft_ids)
    assert all(torch.equal(value, head.state_dict()[name]) for name, value in again.state_dict().items())
    served = DraftHead.load(tmp_path, MODEL_DIR, dtype=torch.float32)
    target = Transformer.load(MODEL_DIR, dtype=torch.float32)
    projection = FeatureProjection.load(tmp_path, target)
    text = Document(document(Random(3), tokenizer).token_ids[:60], num_prompt_tokens=1)
    (row,) = rows_of(network, lay_out([text], special_id(tokenizer, "[PAD]")), draft_ids)
    token_ids = torch.tensor(text.token_ids)
    trained = head(row.tapped, row.embedded, NUM_STEPS)

    tap = Tap(rows=torch.arange(60), layers=projection.layers)
    tapped = target.forward(batch_of(range(60), token_ids, tap), target.new_kv_cache(4, 16)).tapped
    assert tapped is not None
    features, cache = projection(tapped).float(), served.new_kv_cache(6, 16)
    start = 50
    hidden = served.forward(
        batch_of(range(start + 1), token_ids[1 : start + 2]), features[: start + 1], cache
    )[-1:]
    for step in range(NUM_STEPS):
        logits = served.logits(hidden)[0, draft_ids]
        # Features travel as bf16.
        torch.testing.assert_close(logits, trained[step][0, start], atol=0.15, rtol=0.05)
        place = start + step + 1
        hidden = served.forward(
            batch_of(range(place, place + 1), token_ids[place + 1 : place + 2]), hidden, cache
        )


def test_drafts_count_as_right_where_all_before_them_are(
    network: Network, head: HeadNetwork, draft_ids: torch.Tensor, tokenizer: Tokenizer
) -> None:
    texts = [document(Random(seed), tokenizer) for seed in range(3)]
    for row in rows_of(network, lay_out(texts, special_id(tokenizer, "[PAD]")), draft_ids):
        loss, num_right, num_learnt = losses(head, row, NUM_STEPS)
        assert torch.isfinite(loss)
        assert num_learnt >= num_right[0]
        assert num_right.tolist() == sorted(num_right.tolist(), reverse=True)
