"""The shape of a network, read from the config.json of a Hugging Face directory."""

import json
from dataclasses import dataclass
from pathlib import Path

from outrider.kernels.interface import AttentionShape, GateRule
from outrider.model.errors import ConfigError
from outrider.model.fields import Fields
from outrider.model.quantization import Quantization, parse_quantization
from outrider.model.rotary import RotaryConfig, read_stretch

DEEPSEEK_TYPES = ("deepseek_v3", "kimi_k2")
SUPPORTED_TYPES = (*DEEPSEEK_TYPES, "kimi_k25", "llama")

# The latents' own norms are built with this constant whatever rms_norm_eps says, in every public checkpoint.
LATENT_NORM_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    num_heads: int
    query_rank: int | None  # None: queries are not compressed
    latent_width: int
    plain_width: int  # the part of a head without rotary
    rotary_width: int
    value_width: int

    @property
    def head_width(self) -> int:
        return self.plain_width + self.rotary_width

    @property
    def kv_width(self) -> int:
        """Elements that a token leaves in the cache of one layer."""
        return self.latent_width + self.rotary_width

    @property
    def shape(self) -> AttentionShape:
        """All heads read the one cached row; the value is its latent part."""
        return AttentionShape(
            num_queries_per_key=self.num_heads,
            num_key_heads=1,
            key_width=self.kv_width,
            value_width=self.latent_width,
        )


@dataclass(frozen=True, kw_only=True)
class GroupedAttentionConfig:
    """Grouped-query attention (arXiv 2305.13245)."""

    num_heads: int
    num_kv_heads: int
    head_width: int

    @property
    def kv_width(self) -> int:
        """Elements that a token leaves in the cache of one layer."""
        return 2 * self.num_kv_heads * self.head_width

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            num_queries_per_key=self.num_heads // self.num_kv_heads,
            num_key_heads=self.num_kv_heads,
            key_width=self.head_width,
            value_width=self.head_width,
        )


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Sigmoid-gated experts (DeepSeek-V3, arXiv 2412.19437)."""

    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    expert_hidden_size: int
    num_groups: int
    num_kept_groups: int
    normalize_weights: bool
    scaling: float

    @property
    def gate_rule(self) -> GateRule:
        """What the gate's kernel is told."""
        return GateRule(
            num_experts_per_token=self.num_experts_per_token,
            num_groups=self.num_groups,
            num_kept_groups=self.num_kept_groups,
            normalize_weights=self.normalize_weights,
            scaling=self.scaling,
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything the network's code needs to know about a checkpoint; values are read, never assumed."""

    model_type: str
    vocab_size: int
    hidden_size: int
    dense_hidden_size: int
    num_layers: int
    num_dense_layers: int  # the first ones; the rest are MoE
    norm_epsilon: float
    max_num_positions: int
    tied_embeddings: bool
    attention: LatentAttentionConfig | GroupedAttentionConfig
    rotary: RotaryConfig
    moe: MoeConfig | None
    quantization: Quantization | None  # None: all weights are stored plain
    bos_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelConfig":
        return parse_config(read_json(directory / "config.json"))

    def is_moe(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.num_dense_layers

    @property
    def softmax_scale(self) -> float:
        return self.attention.head_width**-0.5 * self.rotary.softmax_factor


def read_json(path: Path) -> Fields:
    """The JSON object in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(path, "file", "is missing") from None
    except (OSError, ValueError) as error:
        raise ConfigError(path, "file", f"cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(path, "file", "is not a JSON object")
    return Fields(path=path, values=values)


def parse_config(fields: Fields) -> ModelConfig:
    """The network that a config.json describes; raises ConfigError for one that this code cannot run."""
    whole = fields
    model_type = fields.text("model_type")
    if model_type == "kimi_k25":
        fields = fields.section("text_config")
        model_type = fields.text("model_type", default="kimi_k2")
    if model_type not in SUPPORTED_TYPES:
        raise fields.error(
            "model_type", f"{model_type!r} is not supported, only {', '.join(SUPPORTED_TYPES)}"
        )
    fields.must_be("hidden_act", "silu")
    fields.must_be("attention_bias", False)
    fields.must_be("mlp_bias", False)
    deepseek = model_type in DEEPSEEK_TYPES
    attention = latent_attention(fields) if deepseek else grouped_attention(fields)
    moe = mixture_of_experts(fields) if deepseek and fields.has("n_routed_experts") else None
    num_layers = fields.integer("num_hidden_layers")
    return ModelConfig(
        model_type=model_type,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        dense_hidden_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_dense_layers=fields.integer("first_k_dense_replace", default=0, minimum=0) if moe else num_layers,
        norm_epsilon=fields.number("rms_norm_eps", default=1e-6),
        max_num_positions=fields.integer("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention=attention,
        rotary=rotary(fields, attention),
        moe=moe,
        quantization=parse_quantization(whole),
        bos_token_ids=fields.token_ids("bos_token_id"),
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def latent_attention(fields: Fields) -> LatentAttentionConfig:
    return LatentAttentionConfig(
        num_heads=fields.integer("num_attention_heads"),
        query_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
        latent_width=fields.integer("kv_lora_rank"),
        plain_width=fields.integer("qk_nope_head_dim"),
        rotary_width=fields.integer("qk_rope_head_dim"),
        value_width=fields.integer("v_head_dim"),
    )


def grouped_attention(fields: Fields) -> GroupedAttentionConfig:
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} query heads")
    head_width = fields.integer("head_dim", default=fields.integer("hidden_size") // num_heads)
    return GroupedAttentionConfig(num_heads=num_heads, num_kv_heads=num_kv_heads, head_width=head_width)


def mixture_of_experts(fields: Fields) -> MoeConfig:
    fields.must_be("scoring_func", "sigmoid")
    fields.must_be("topk_method", "noaux_tc")
    fields.must_be("moe_layer_freq", 1)
    num_experts = fields.integer("n_routed_experts")
    num_groups = fields.integer("n_group", default=1)
    num_kept_groups = fields.integer("topk_group", default=1)
    per_token = fields.integer("num_experts_per_tok")
    if num_experts % num_groups or (num_groups > 1 and num_experts // num_groups < 2):
        raise fields.error("n_group", f"{num_experts} experts do not form {num_groups} groups of two or more")
    if num_kept_groups > num_groups:
        raise fields.error("topk_group", f"{num_kept_groups} is more than the {num_groups} groups")
    if per_token > num_kept_groups * (num_experts // num_groups):
        raise fields.error("num_experts_per_tok", f"{per_token} is more than the kept groups hold")
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=per_token,
        num_shared_experts=fields.integer("n_shared_experts", default=0, minimum=0),
        expert_hidden_size=fields.integer("moe_intermediate_size"),
        num_groups=num_groups,
        num_kept_groups=num_kept_groups,
        normalize_weights=fields.flag("norm_topk_prob", default=True),
        scaling=fields.number("routed_scaling_factor", default=1.0),
    )


def rotary(fields: Fields, attention: LatentAttentionConfig | GroupedAttentionConfig) -> RotaryConfig:
    """Reads both spellings: rope_theta with rope_scaling, and the newer rope_parameters that holds all."""
    latent = isinstance(attention, LatentAttentionConfig)
    width = attention.rotary_width if latent else attention.head_width
    if width % 2:
        raise fields.error("qk_rope_head_dim" if latent else "head_dim", f"{width} is odd")
    scaling = next(
        (fields.section(name) for name in ("rope_parameters", "rope_scaling") if fields.has(name)), None
    )
    theta_in = scaling if scaling and scaling.has("rope_theta") else fields
    return RotaryConfig(
        width=width,
        theta=theta_in.number("rope_theta", default=10000.0),
        interleaved=latent and fields.flag("rope_interleave", default=True),
        stretch=read_stretch(scaling) if scaling else None,
    )
