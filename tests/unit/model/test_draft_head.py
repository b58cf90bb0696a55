"""Draft heads in EAGLE-3 form: what they compute, what of the target they see, and what loading refuses."""

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.kernels import DRAFTING
from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.draft_head import DraftHead, FeatureProjection
from outrider.model.errors import CheckpointError, ModelError
from outrider.model.kv_cache import KVCache
from outrider.model.transformer import Transformer
from tests.unit.model.quantized_models import fp8_section
from tests.unit.model.random_heads import PlainHead, head_config, id_maps, write_head
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, write_checkpoint

BLOCK_SIZE = 16
NUM_TOKENS = 150  # beyond an attention split
MAX_RELATIVE_ERROR = 1e-4
PUBLISHED = ("lm_head.weight", "d2t", "t2d")
LATENT = {
    "model_type": "kimi_k2",
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
HEADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "as published": ({}, PUBLISHED),
    "the target's output head": ({}, ("d2t",)),
    "the target's whole vocabulary": ({"draft_vocab_size": VOCAB_SIZE}, ("lm_head.weight",)),
    "an embedding of its own": ({}, (*PUBLISHED, "embed_tokens.weight")),
    "the residual normalized": ({"norm_before_residual": True}, PUBLISHED),
    "every head its own key": ({"num_key_value_heads": 6}, PUBLISHED),
    "latent attention, as heads of Kimi K2.5 have it": (LATENT, PUBLISHED),
}


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("target"), deepseek_config())


@pytest.fixture(scope="module")
def target(target_dir):
    return Transformer.load(target_dir)


@pytest.fixture
def head_dir(tmp_path):
    return write_head(tmp_path / "head", head_config())


def tapped_of(model: Transformer, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
    tapped = model.forward(batch, cache).tapped
    assert tapped is not None
    return tapped


def token_ids_of(seed: int) -> list[int]:
    return torch.randint(VOCAB_SIZE, (NUM_TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


def batch_of(token_ids: list[int], first: int = 0, tap: Tap | None = None) -> ForwardBatch:
    """The tokens as the last of one sequence of which `first` are cached."""
    end = first + len(token_ids)
    rows = torch.arange(first, end)
    span = Span(first_row=0, num_rows=len(token_ids), num_context=end, block_ids=list(range(-(-end // 16))))
    return ForwardBatch(
        token_ids=torch.tensor(token_ids),
        positions=rows,
        slots=rows,
        spans=(span,),
        logit_rows=torch.arange(len(token_ids)),
        tap=tap,
    )


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("backend", ["torch", DRAFTING])
@pytest.mark.parametrize(("dtype", "max_error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_head_computes_what_a_plain_one_does_in_float64(
    name, dtype, max_error, backend, target_dir, tmp_path
):
    config, optional = HEADS[name]
    directory = write_head(tmp_path / "head", head_config(**config), optional=optional)
    head, plain = (
        DraftHead.load(directory, target_dir, dtype=dtype, backend=backend),
        PlainHead(directory, target_dir),
    )
    features = torch.randn(NUM_TOKENS, 48, generator=torch.Generator().manual_seed(3))
    cache, token_ids = head.new_kv_cache(12, BLOCK_SIZE), token_ids_of(3)
    ours = head.forward(batch_of(token_ids), features.to(dtype), cache)
    hidden, logits = plain.rows(features, token_ids)
    assert relative_error(ours, hidden) < max_error
    said = torch.isfinite(logits)
    assert torch.equal(torch.isfinite(head.logits(ours)), said)
    assert relative_error(head.logits(ours)[said], logits[said]) < max_error


def relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return ((ours.double() - reference).abs().max() / reference.abs().max()).item()


def test_a_head_goes_on_from_its_own_output_where_it_drafts(head_dir, target_dir):
    head, plain = DraftHead.load(head_dir, target_dir), PlainHead(head_dir, target_dir)
    features = torch.randn(NUM_TOKENS, 48, generator=torch.Generator().manual_seed(4))
    token_ids, drafted = token_ids_of(4), []
    cache = head.new_kv_cache(12, BLOCK_SIZE)
    hidden = head.forward(batch_of(token_ids), features, cache)[-1:]
    for place in range(6):
        drafted.append(int(head.logits(hidden).argmax()))
        hidden = head.forward(batch_of(drafted[-1:], NUM_TOKENS + place), hidden, cache)
    assert drafted == plain.draft(features, token_ids, 6)


def test_a_row_has_the_same_bits_whatever_is_computed_with_it(head_dir, target_dir):
    head = DraftHead.load(head_dir, target_dir)
    features = torch.randn(NUM_TOKENS, 48, generator=torch.Generator().manual_seed(5))
    token_ids = token_ids_of(5)
    whole = head.forward(batch_of(token_ids), features, head.new_kv_cache(12, BLOCK_SIZE))
    cache = head.new_kv_cache(12, BLOCK_SIZE)
    cuts = [0, 1, 2, 40, 41, NUM_TOKENS]
    parts = [
        head.forward(batch_of(token_ids[first:end], first), features[first:end], cache)
        for first, end in pairwise(cuts)
    ]
    assert torch.equal(torch.cat(parts), whole)


def test_a_tap_gives_hidden_vectors_as_transformers_has_them(target, target_dir):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(target_dir, attn_implementation="eager")
    token_ids = token_ids_of(6)
    with torch.inference_mode():
        states = theirs.float().eval()(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    rows = torch.tensor([2, 70, NUM_TOKENS - 1])
    tap = Tap(rows=rows, layers=(0, 1, 2))
    result = target.forward(batch_of(token_ids, tap=tap), target.new_kv_cache(12, BLOCK_SIZE))
    expected = torch.cat([states[layer][0, rows] for layer in (0, 1, 2)], dim=1)
    assert relative_error(result.tapped, expected) < MAX_RELATIVE_ERROR


def test_a_tap_behind_the_last_layer_gives_what_the_output_head_is_made_of(target, target_dir):
    token_ids, rows = token_ids_of(7), torch.arange(NUM_TOKENS)
    result = target.forward(
        batch_of(token_ids, tap=Tap(rows=rows, layers=(3,))), target.new_kv_cache(12, BLOCK_SIZE)
    )
    tensors = load_file(target_dir / "model.safetensors")
    normed = torch.nn.functional.rms_norm(result.tapped, (48,), tensors["model.norm.weight"], 1e-5)
    assert relative_error(result.logits, (normed @ tensors["lm_head.weight"].T).double()) < MAX_RELATIVE_ERROR


def test_a_tap_changes_no_bit_of_the_logits(target):
    token_ids = token_ids_of(8)
    logits = [
        target.forward(batch_of(token_ids, tap=tap), target.new_kv_cache(12, BLOCK_SIZE)).logits
        for tap in (None, Tap(rows=torch.arange(3, 90), layers=(0, 2, 3)))
    ]
    assert torch.equal(*logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_have_the_same_bits_whatever_is_computed_with_them(dtype, head_dir, target_dir):
    target = Transformer.load(target_dir, dtype=dtype)
    projection = FeatureProjection.load(head_dir, target)
    token_ids = token_ids_of(9)

    def features(cuts: list[int]) -> torch.Tensor:
        cache, parts = target.new_kv_cache(12, BLOCK_SIZE), []
        for first, end in pairwise(cuts):
            tap = Tap(rows=torch.arange(end - first), layers=projection.layers)
            tapped = tapped_of(target, batch_of(token_ids[first:end], first, tap), cache)
            parts += [projection(row[None]) for row in tapped]
        return torch.cat(parts)

    tap = Tap(rows=torch.arange(NUM_TOKENS), layers=projection.layers)
    whole = tapped_of(target, batch_of(token_ids, tap=tap), target.new_kv_cache(12, BLOCK_SIZE))
    assert torch.equal(features([0, 1, 17, 60, NUM_TOKENS]), projection(whole))
    plain = PlainHead(head_dir, target_dir).features(whole)
    assert relative_error(projection(whole), plain) < 0.02


@pytest.mark.parametrize(
    ("where", "ids", "layers"),
    [
        ("top level: the inputs of layers", {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, (0, 1, 3)),
        (
            "eagle_config: the outputs of layers",
            {
                "eagle_aux_hidden_state_layer_ids": None,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]},
            },
            (1, 3),
        ),
    ],
)
def test_layers_are_read_as_those_who_export_them_mean_them(where, ids, layers, target, tmp_path):
    directory = write_head(tmp_path / "head", head_config(**ids))
    assert FeatureProjection.load(directory, target).layers == layers


def test_a_head_that_names_no_layers_gets_the_published_ones(tmp_path):
    deep = deepseek_config(num_hidden_layers=10, first_k_dense_replace=10)
    model = Transformer.load(write_checkpoint(tmp_path / "deep", deep))
    directory = write_head(tmp_path / "head", head_config(eagle_aux_hidden_state_layer_ids=None))
    assert FeatureProjection.load(directory, model).layers == (2, 5, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"model_type": "mamba"}, "model_type"),
        ({"quantization_config": fp8_section()}, "quantization_config"),
        (LATENT, "midlayer.self_attn.q_a_proj.weight"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, r"eagle_config\.use_aux_hidden_state"),
        ({"eagle_aux_hidden_state_layer_ids": None}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 1, 3]}, "eagle_aux_hidden_state_layer_ids"),
        ({"vocab_size": 96}, "vocab_size"),
        ({"target_hidden_size": 96}, "target_hidden_size"),
    ],
)
def test_a_head_that_does_not_fit_the_target_is_refused_by_its_field(changes, message, target, tmp_path):
    sizes = {name: value for name, value in changes.items() if name in ("target_hidden_size", "vocab_size")}
    directory = write_head(tmp_path / "head", head_config(**sizes), optional=("lm_head.weight", "d2t"))
    (directory / "config.json").write_text(json.dumps(head_config(**changes)))
    with pytest.raises(ModelError, match=message):
        FeatureProjection.load(directory, target)


def spoil(tensors: dict[str, torch.Tensor], name: str, value: torch.Tensor | None) -> None:
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc.weight", None, "missing tensors: fc.weight"),
        ("midlayer.hidden_norm.weight", None, "missing tensors: midlayer.hidden_norm.weight"),
        ("d2t", None, "missing tensors: d2t"),
        ("midlayer.self_attn.q_proj.weight", torch.zeros(96, 48), r"is \[96, 48\], not \[96, 96\]"),
        ("norm.weight", torch.zeros(48, dtype=torch.int64), "norm.weight is I64"),
        ("d2t", torch.zeros(40), "d2t is F32, not I64"),
        ("d2t", torch.full((40,), VOCAB_SIZE), "d2t does not name different tokens"),
        ("d2t", -torch.arange(40), "d2t does not name different tokens"),
        ("t2d", id_maps(torch.arange(41))["t2d"], "t2d names other tokens than d2t"),
        ("midlayer.extra.weight", torch.zeros(2), "unexpected tensors: midlayer.extra.weight"),
    ],
)
def test_tensors_that_are_wrong_are_refused_by_name(name, value, message, head_dir, target_dir):
    file = head_dir / "model.safetensors"
    tensors = load_file(file)
    spoil(tensors, name, value)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message):
        DraftHead.load(head_dir, target_dir)


def test_a_target_of_another_width_is_refused(head_dir, tmp_path):
    narrow = write_checkpoint(tmp_path / "narrow", deepseek_config(hidden_size=32))
    with pytest.raises(CheckpointError, match=r"model.embed_tokens.weight is \[97, 32\], not \[97, 48\]"):
        DraftHead.load(head_dir, narrow)


def test_buffers_of_old_exporters_are_skipped_and_logged(head_dir, target_dir, caplog):
    file = head_dir / "model.safetensors"
    save_file(load_file(file) | {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(4)}, file)
    with caplog.at_level("INFO", logger="outrider.model.checkpoint"):
        DraftHead.load(head_dir, target_dir)
    assert "skipped 1 tensors" in caplog.text
