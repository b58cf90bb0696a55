"""What a model holds and reads in a step, by the numbers of its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from outrider.model.fields import Fields
from outrider.model.quantization import FP8_BLOCK, INT4_GROUP, Storage, parse_quantization

# Bytes per second that one device reads from its memory, by its data sheet.
BANDWIDTHS = {"A100": 2.0e12, "H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12, "MI300X": 5.3e12}
BF16 = 2.0
# Scales included: bf16 for a group, fp32 for a block.
BYTES_PER_WEIGHT = {
    Storage.PLAIN: BF16,
    Storage.INT4: 0.5 + BF16 / INT4_GROUP,
    Storage.FP8: 1 + 4 / FP8_BLOCK**2,
}
MULTIPLES = {Storage.PLAIN: 1, Storage.INT4: INT4_GROUP, Storage.FP8: FP8_BLOCK}


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
    num_heads: int
    hidden: int
    vocabulary: int
    dense_hidden: int
    shared_hidden: int
    # Weights of one layer's parts.
    attention: int
    inward: int  # the part of the attention that every rank of a group computes, of no head alone
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
    linear_multiple: int  # inputs of such a product that share a scale: ranks can part them nowhere else

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Reads the config of a model with latent attention; raises KeyError for one without its fields.

        Raises ModelError for a quantization_config that is not read.
        """
        text = config.get("text_config", config)
        expert_storage, linear_storage = _storages(config)
        hidden, expert_hidden = text["hidden_size"], text["moe_intermediate_size"]
        shared_hidden = expert_hidden * (text.get("n_shared_experts") or 0)
        return cls(
            num_layers=text["num_hidden_layers"],
            num_dense_layers=text["first_k_dense_replace"],
            num_experts=text["n_routed_experts"],
            num_experts_per_token=text["num_experts_per_tok"],
            num_heads=text["num_attention_heads"],
            hidden=hidden,
            vocabulary=text["vocab_size"],
            dense_hidden=text["intermediate_size"],
            shared_hidden=shared_hidden,
            attention=_attention(text),
            inward=_inward(text),
            absorbed=_absorbed(text),
            dense=3 * hidden * text["intermediate_size"],
            expert=3 * hidden * expert_hidden,
            shared=3 * hidden * shared_hidden,
            gate=hidden * text["n_routed_experts"],
            head=hidden * text["vocab_size"],
            latent=text["kv_lora_rank"] + text["qk_rope_head_dim"],
            expert_bytes=BYTES_PER_WEIGHT[expert_storage],
            linear_bytes=BYTES_PER_WEIGHT[linear_storage],
            linear_multiple=MULTIPLES[linear_storage],
        )

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - self.num_dense_layers

    @property
    def bytes_per_expert(self) -> float:
        """One routed expert of one layer, as it is stored."""
        return self.expert * self.expert_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """The latent cache, in bf16."""
        return int(self.num_layers * self.latent * BF16)

    @property
    def fixed_bytes(self) -> float:
        """What every step reads: all but the routed experts and the embedding."""
        linear = (
            self.num_layers * self.attention
            + self.num_dense_layers * self.dense
            + self.num_moe_layers * self.shared
        )
        plain = self.num_layers * self.absorbed + self.num_moe_layers * self.gate + self.head
        return linear * self.linear_bytes + plain * BF16

    def part_woken(self, num_tokens: int) -> float:
        """Returns the part of a layer's experts that some tokens wake, each for itself."""
        return 1 - (1 - self.num_experts_per_token / self.num_experts) ** num_tokens

    def step(self, num_tokens: int, bandwidth: float) -> Step:
        """Returns what a step reads, and the time that takes at `bandwidth` bytes per second."""
        num_distinct = self.num_experts * self.part_woken(num_tokens)
        num_bytes = self.fixed_bytes + self.num_moe_layers * num_distinct * self.bytes_per_expert
        return Step(
            num_tokens=num_tokens,
            num_distinct_experts=round(num_distinct, 1),
            bytes=round(num_bytes),
            milliseconds=round(1e3 * num_bytes / bandwidth, 4),
        )


def _attention(text: Mapping[str, Any]) -> int:
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    query = heads * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"])
    rank = text.get("q_lora_rank") or 0
    return _inward(text) + (rank or hidden) * query + heads * text["v_head_dim"] * hidden


def _inward(text: Mapping[str, Any]) -> int:
    latent = text["kv_lora_rank"] + text["qk_rope_head_dim"]
    return text["hidden_size"] * (latent + (text.get("q_lora_rank") or 0))


def _absorbed(text: Mapping[str, Any]) -> int:
    widths = text["qk_nope_head_dim"] + text["v_head_dim"]
    return text["kv_lora_rank"] * text["num_attention_heads"] * widths


def _storages(config: Mapping[str, Any]) -> tuple[Storage, Storage]:
    """Returns how routed experts are stored, and other products, judged by the attention's."""
    said = parse_quantization(Fields(path=Path("config"), values=config))
    if said is None:
        return Storage.PLAIN, Storage.PLAIN
    linears = ("model.layers.0.mlp.experts.0.up_proj", "model.layers.0.self_attn.o_proj")
    expert, linear = (said.storage_of(name) for name in linears)
    return expert, linear
