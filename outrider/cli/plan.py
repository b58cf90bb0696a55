"""`outrider plan`: what a step of a model must read, from its config.json alone."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from outrider.cli.connection import read
from outrider.cli.parser import UsageError
from outrider.model.errors import ModelError
from outrider.model.fields import Fields
from outrider.model.quantization import FP8_BLOCK, INT4_GROUP, Storage, parse_quantization

# Bytes per second that one device reads from its memory, by its data sheet.
BANDWIDTHS = {"A100": 2.0e12, "H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12, "MI300X": 5.3e12}
NUM_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BF16 = 2.0
# Scales included: bf16 for a group, fp32 for a block.
BYTES_PER_WEIGHT = {
    Storage.PLAIN: BF16,
    Storage.INT4: 0.5 + BF16 / INT4_GROUP,
    Storage.FP8: 1 + 4 / FP8_BLOCK**2,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of `num_tokens` tokens, if each picks its experts for itself."""

    num_tokens: int
    num_distinct_experts: float
    bytes: int
    milliseconds: float


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a model that decide what it reads."""

    num_layers: int
    num_dense_layers: int
    num_experts: int
    num_experts_per_token: int
    # Weights of one layer's parts.
    attention: int
    absorbed: int  # the part of the attention that is computed by head, in bf16 whatever it is stored as
    dense: int
    expert: int
    shared: int
    gate: int
    head: int
    latent: int
    # Bytes per weight of the routed experts, and of the other products but gate and head.
    expert_bytes: float
    linear_bytes: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads the config of a model with latent attention; raises KeyError for one without its fields.

        Raises ModelError for a quantization_config that is not read.
        """
        text = config.get("text_config", config)
        expert_bytes, linear_bytes = _bytes_per_weight(config)
        hidden = text["hidden_size"]
        expert = 3 * hidden * text["moe_intermediate_size"]
        return cls(
            num_layers=text["num_hidden_layers"],
            num_dense_layers=text["first_k_dense_replace"],
            num_experts=text["n_routed_experts"],
            num_experts_per_token=text["num_experts_per_tok"],
            attention=_attention(text),
            absorbed=_absorbed(text),
            dense=3 * hidden * text["intermediate_size"],
            expert=expert,
            shared=expert * (text.get("n_shared_experts") or 0),
            gate=hidden * text["n_routed_experts"],
            head=hidden * text["vocab_size"],
            latent=text["kv_lora_rank"] + text["qk_rope_head_dim"],
            expert_bytes=expert_bytes,
            linear_bytes=linear_bytes,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """The latent cache, in bf16."""
        return int(self.num_layers * self.latent * BF16)

    @property
    def fixed_bytes(self) -> float:
        """What every step reads: all but the routed experts and the embedding."""
        num_moe_layers = self.num_layers - self.num_dense_layers
        linear = (
            self.num_layers * self.attention
            + self.num_dense_layers * self.dense
            + num_moe_layers * self.shared
        )
        plain = self.num_layers * self.absorbed + num_moe_layers * self.gate + self.head
        return linear * self.linear_bytes + plain * BF16

    def step(self, num_tokens: int, bandwidth: float) -> Step:
        """Returns what a step reads, and the time that takes at `bandwidth` bytes per second."""
        missed = (1 - self.num_experts_per_token / self.num_experts) ** num_tokens
        num_distinct = self.num_experts * (1 - missed)
        num_moe_layers = self.num_layers - self.num_dense_layers
        num_bytes = self.fixed_bytes + num_moe_layers * num_distinct * self.expert * self.expert_bytes
        return Step(
            num_tokens=num_tokens,
            num_distinct_experts=round(num_distinct, 1),
            bytes=round(num_bytes),
            milliseconds=round(1e3 * num_bytes / bandwidth, 4),
        )


def _attention(text: Mapping[str, Any]) -> int:
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    query = heads * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"])
    rank = text.get("q_lora_rank")
    queries = rank * (hidden + query) if rank else hidden * query
    compress = hidden * (text["kv_lora_rank"] + text["qk_rope_head_dim"])
    return queries + compress + heads * text["v_head_dim"] * hidden


def _absorbed(text: Mapping[str, Any]) -> int:
    widths = text["qk_nope_head_dim"] + text["v_head_dim"]
    return text["kv_lora_rank"] * text["num_attention_heads"] * widths


def _bytes_per_weight(config: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the bytes of a routed expert's weight, and of another product's, judged by the attention's."""
    said = parse_quantization(Fields(path=Path("config"), values=config))
    if said is None:
        return BF16, BF16
    linears = ("model.layers.0.mlp.experts.0.up_proj", "model.layers.0.self_attn.o_proj")
    expert, linear = (BYTES_PER_WEIGHT[said.storage_of(name)] for name in linears)
    return expert, linear


def run(arguments: argparse.Namespace) -> None:
    """Prints the plan."""
    try:
        shape = Shape.from_config(json.loads(read(arguments.config)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{arguments.config}: {type(error).__name__}: {error}") from None
    except ModelError as error:
        raise UsageError(f"{arguments.config}: {error}") from None
    bandwidth = arguments.num_devices * BANDWIDTHS[arguments.device]
    steps = [shape.step(num_tokens, bandwidth) for num_tokens in NUM_TOKENS]
    if arguments.json:
        plan = {"kv_bytes_per_token": shape.kv_bytes_per_token, "steps": [asdict(step) for step in steps]}
        print(json.dumps(plan))
        return
    print(f"{shape.kv_bytes_per_token:,} bytes of KV cache per token")
    print(f"a step on {arguments.num_devices} x {arguments.device}, bound by memory, without the KV cache:")
    print(f"{'tokens':>8}{'experts':>10}{'GB read':>10}{'ms':>10}")
    for step in steps:
        gigabytes = step.bytes / 1e9
        experts = step.num_distinct_experts
        print(f"{step.num_tokens:>8}{experts:>10.1f}{gigabytes:>10.1f}{step.milliseconds:>10.2f}")
