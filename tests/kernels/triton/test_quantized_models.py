"""Whole models whose weights are stored in int4 and FP8, on the GPU kernels: close to plain products."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.kernels import torch as torch_kernels
from outrider.kernels.interface import Choice, Kernels
from outrider.kernels.weights import FP8_BLOCK, Fp8Weight, StoredWeight, to_plain
from outrider.model.checkpoint import Checkpoint
from outrider.model.config import ModelConfig
from outrider.model.reader import Meter, Reader
from outrider.model.transformer import Transformer
from tests.unit.model.quantized_models import fp8_config, int4_config, write_pair
from tests.unit.model.sequences import Driver

TOKENS = [3, 14, 15, 92, 65]
SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}


def rounded(x: Tensor, weight: StoredWeight) -> Tensor:
    """The inputs [T, K] that a product multiplies: those of FP8 weights are e4m3, a factor for each block."""
    if not isinstance(weight, Fp8Weight):
        return x
    K = x.shape[1]
    blocks = F.pad(x, (0, -K % FP8_BLOCK)).unflatten(1, (-1, FP8_BLOCK))
    factors = blocks.abs().amax(2, keepdim=True).clamp(min=1e-12) / 448
    return ((blocks / factors).to(torch.float8_e4m3fn).float() * factors).flatten(1)[:, :K]


def product(x: Tensor, weight: StoredWeight) -> Tensor:
    return rounded(x, weight) @ to_plain(weight).T


def experts(x: Tensor, choice: Choice, weights: tuple[list[StoredWeight], list[StoredWeight]]) -> Tensor:
    """The chosen experts' outputs, one pair of token and expert after another: [T, D] -> [T, A, D]."""
    gate_up, down = weights
    outputs = [
        product(torch_kernels.silu_product(product(x[t : t + 1], gate_up[e])), down[e])
        for t, chosen in enumerate(choice.experts.tolist())
        for e in chosen
    ]
    return torch.cat(outputs).view(*choice.experts.shape, -1)


REFERENCE = vars(torch_kernels) | {
    "pack_linear": lambda weight: weight,
    "linear": product,
    "pack_experts": lambda gate_up, down, num_slots: (gate_up, down),
    "experts": experts,
}


def reference_model(directory: Path) -> Transformer:
    """The model on torch's kernels, its products as said above."""
    config, checkpoint = ModelConfig.from_directory(directory), Checkpoint.open(directory)
    meter = Meter(total=0, report=None)
    reader = Reader(checkpoint=checkpoint, dtype=torch.float32, device=torch.device("cpu"), meter=meter)
    return Transformer(config, reader, cast(Kernels, SimpleNamespace(**REFERENCE)), "reference")


@pytest.mark.parametrize("config", [int4_config(**SIZES), fp8_config(**SIZES)], ids=["int4", "fp8"])
def test_logits_are_those_of_plain_products_of_the_values_that_are_stored(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    quantized, _ = write_pair(tmp_path, config, torch.float32)
    expected = Driver(reference_model(quantized), num_blocks=2).logits(TOKENS)
    model = Transformer.load(quantized, dtype=torch.float32, backend="triton")
    actual = Driver(model, num_blocks=2).logits(TOKENS)
    assert (actual - expected).norm() < 1e-5 * expected.norm()
