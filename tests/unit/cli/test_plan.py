import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.cli import main
from outrider.cli.plan import BANDWIDTHS, Shape
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
