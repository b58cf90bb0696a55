import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import published
from outrider.cli import main
from outrider.cli.shape import BANDWIDTHS, Shape
from outrider.cli.shard import Shard
from tests.unit.model.quantized_models import fp8_config, int4_config, write_pair

# The published config.json of Kimi K2.5, as far as it decides what is read.
KIMI_K25 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True},
            }
        },
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        ],
    },
    "text_config": {
        "num_hidden_layers": 61, "first_k_dense_replace": 1, "hidden_size": 7168,
        "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 163840,
        "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("num_tokens", "experts", "gigabytes", "milliseconds"),
    [
        (1, 8.0, 33.0, 0.52),
        (4, 31.0, 67.2, 1.05),
        (8, 59.5, 109.6, 1.71),
        (16, 109.8, 184.3, 2.88),
        (64, 284.2, 443.5, 6.93),
        (256, 382.2, 589.2, 9.21),
    ],
)
def test_a_step_of_kimi_k25_reads_what_the_arithmetic_of_its_shapes_says(
    num_tokens: int, experts: float, gigabytes: float, milliseconds: float
) -> None:
    step = Shape.from_config(KIMI_K25).step(num_tokens, 8 * BANDWIDTHS["B200"])
    assert step.num_distinct_experts == experts
    assert step.bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert step.milliseconds == pytest.approx(milliseconds, abs=0.005)


@pytest.mark.parametrize(
    "config",
    [
        int4_config(),
        fp8_config(
            hidden_size=256,
            q_lora_rank=128,
            kv_lora_rank=128,
            qk_rope_head_dim=128,
            v_head_dim=32,
            qk_nope_head_dim=32,
            moe_intermediate_size=128,
            intermediate_size=256,
        ),
    ],
    ids=["int4 experts", "fp8"],
)
def test_a_step_that_wakes_every_expert_reads_every_stored_byte_but_of_what_is_gathered_or_decompressed(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    quantized, _ = write_pair(tmp_path, config, torch.bfloat16)
    tensors = load_file(quantized / "model.safetensors")
    num_bytes = 0
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or "embed_tokens" in name or "kv_b_proj.weight_scale_inv" in name:
            continue
        num_bytes += 2 * tensor.numel() if "kv_b_proj" in name else tensor.nbytes
    assert Shape.from_config(config).step(10_000, 1.0).bytes == num_bytes


def test_the_last_line_of_a_plan_is_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(KIMI_K25))
    assert main(["plan", str(config), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert plan["kv_bytes_per_token"] == 70_272
    assert plan["steps"][0].keys() == {"num_tokens", "num_distinct_experts", "bytes", "milliseconds"}
    assert [step["num_tokens"] for step in plan["rank"]["steps"]] == [s["num_tokens"] for s in plan["steps"]]
    assert plan["rank"]["kv_bytes_per_token"] == 70_272


def test_ranks_together_hold_the_model_once_but_for_what_is_whole_on_each() -> None:
    shape = Shape.from_config(KIMI_K25)
    alone, eighth = (Shard(shape=shape, num_ranks=num_ranks) for num_ranks in (1, 8))
    # The inward products, the gate in fp32, and the embedding.
    whole = 61 * 7168 * (1536 + 576) * 2 + 60 * 7168 * 384 * 4 + 7168 * 163840 * 2
    assert 8 * eighth.weight_bytes - alone.weight_bytes == pytest.approx(7 * whole, rel=1e-9)


def test_copies_of_experts_are_held_beside_them() -> None:
    shape = Shape.from_config(KIMI_K25)
    few, many = (Shard(shape=shape, num_ranks=8, num_redundant_experts=number) for number in (0, 32))
    assert (few.num_slots, many.num_slots) == (48, 52)
    assert many.weight_bytes - few.weight_bytes == pytest.approx(60 * 4 * shape.bytes_per_expert)


def test_one_rank_reads_what_the_whole_model_does_with_its_gate_in_fp32() -> None:
    shape = Shape.from_config(KIMI_K25)
    step = Shard(shape=shape, num_ranks=1).step(8, "B200", BANDWIDTHS["B200"])
    assert step.bytes == pytest.approx(shape.step(8, 1.0).bytes + 60 * 384 * 7168 * 2)
    assert (step.num_exchanges, step.exchange_bytes, step.exchange_milliseconds) == (0, 0, 0)


@pytest.mark.parametrize("num_tokens", [1, 8, 64])
def test_the_busiest_rank_wakes_as_many_experts_as_chance_has_it(num_tokens: int) -> None:
    source, most = random.Random(num_tokens), []
    for _ in range(400):
        woken = {expert for _ in range(num_tokens) for expert in source.sample(range(384), 8)}
        most.append(max(sum(expert // 48 == rank for expert in woken) for rank in range(8)))
    found = Shard(shape=Shape.from_config(KIMI_K25), num_ranks=8).num_distinct_experts(num_tokens)
    assert found == pytest.approx(sum(most) / len(most), rel=0.05)


def test_every_layer_exchanges_twice_and_a_step_ends_with_its_logits() -> None:
    shard = Shard(shape=Shape.from_config(KIMI_K25), num_ranks=8)
    step = shard.step(4, "B200", BANDWIDTHS["B200"])
    assert step.num_exchanges == 2 * 61 + 1
    # Rows of 7,168: one after each attention and the dense block, nine after the experts; then the logits.
    rows = 61 + 1 + 60 * 9
    assert step.exchange_bytes == 7 * 4 * 2 * (rows * 7168 + 163840 // 8)


def test_what_ranks_cannot_share_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(KIMI_K25))
    assert main(["plan", str(config), "--num-devices", "128"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "64 attention heads cannot be split over 128 ranks"
    assert main(["plan", str(config), "--num-devices", "128", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rank"] is None


def test_blocks_of_fp8_are_not_split() -> None:
    shape = Shape.from_config(published.raw_config("deepseek-v3"))
    assert list(Shard(shape=shape, num_ranks=8).obstacles()) == []
    (dense, shared) = Shard(shape=shape, num_ranks=32).obstacles()
    assert dense == "18432 dense hidden numbers cannot be split in multiples of 128 over 32 ranks"
    assert shared.startswith("2048 shared hidden numbers")


def test_a_quantization_that_is_not_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(KIMI_K25 | {"quantization_config": {"quant_method": "gptq"}}))
    assert main(["plan", str(config)]) == 2
    message = f"outrider: {config}: config: quantization_config.quant_method: 'gptq' is not supported"
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 1}'])
def test_a_config_that_cannot_be_planned_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    assert main(["plan", str(config)]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"outrider: {config}: ")
    assert output.err.count("\n") == 1
