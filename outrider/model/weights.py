"""The names, shapes and types of the tensors that a config demands of its checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.model.config import GroupedAttentionConfig, LatentAttentionConfig, ModelConfig, MoeConfig
from outrider.model.errors import CheckpointError
from outrider.model.quantization import FP8_BLOCK, INT4_GROUP, Storage

Shape = tuple[int, ...]

PLAIN_DTYPES = ("BF16", "F16", "F32")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a tensor must be."""

    shape: Shape
    dtypes: tuple[str, ...] = PLAIN_DTYPES  # as safetensors spells them; any of these


def expected_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor that is read; raises CheckpointError for a weight that cannot be stored as is said."""
    storages = linear_storages(config)
    expected: dict[str, Expected] = {}
    for name, shape in plain_tensors(config):
        linear = name.removesuffix(".weight")
        if linear in storages:
            expected.update(stored_parts(linear, shape, storages[linear]))
        else:
            expected[name] = Expected(shape=shape)
    return expected


def linear_storages(config: ModelConfig) -> dict[str, Storage]:
    """How each linear of a layer is said to be stored; gate, embedding and output head are always plain."""
    said = config.quantization
    linears = [name.removesuffix(".weight") for name, _ in plain_tensors(config) if "_proj" in name]
    return {linear: said.storage_of(linear) if said else Storage.PLAIN for linear in linears}


def stored_parts(linear: str, shape: Shape, storage: Storage) -> dict[str, Expected]:
    """The tensors of a linear's weight [N, K]."""
    N, K = shape
    if storage == Storage.INT4:
        if K % INT4_GROUP:
            raise CheckpointError(f"{linear}: {K} inputs are not whole groups of {INT4_GROUP}")
        return {
            f"{linear}.weight_packed": Expected(shape=(N, K // 8), dtypes=("I32",)),
            f"{linear}.weight_scale": Expected(shape=(N, K // INT4_GROUP), dtypes=("BF16",)),
            f"{linear}.weight_shape": Expected(shape=(2,), dtypes=("I32", "I64")),
        }
    if storage == Storage.FP8:
        blocks = (-(-N // FP8_BLOCK), -(-K // FP8_BLOCK))
        return {
            f"{linear}.weight": Expected(shape=(N, K), dtypes=("F8_E4M3",)),
            f"{linear}.weight_scale_inv": Expected(shape=blocks, dtypes=("F32",)),
        }
    return {f"{linear}.weight": Expected(shape=shape)}


def plain_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Every tensor of the network, with its shape as Hugging Face stores it: [outputs, inputs]."""
    D = config.hidden_size
    yield "model.embed_tokens.weight", (config.vocab_size, D)
    yield "model.norm.weight", (D,)
    if not config.tied_embeddings:
        yield "lm_head.weight", (config.vocab_size, D)
    for layer in range(config.num_layers):
        for name, shape in layer_tensors(config, layer):
            yield f"model.layers.{layer}.{name}", shape


def layer_tensors(config: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    D = config.hidden_size
    yield "input_layernorm.weight", (D,)
    yield "post_attention_layernorm.weight", (D,)
    attention = config.attention
    if isinstance(attention, LatentAttentionConfig):
        yield from latent_attention_tensors(attention, D)
    else:
        yield from grouped_attention_tensors(attention, D)
    if config.moe and config.is_moe(layer):
        yield from moe_tensors(config.moe, D)
    else:
        yield from feed_forward_tensors("mlp.", D, config.dense_hidden_size)


def latent_attention_tensors(attention: LatentAttentionConfig, D: int) -> Iterator[tuple[str, Shape]]:
    H, C, P = attention.num_heads, attention.latent_width, attention.rotary_width
    if attention.query_rank:
        yield "self_attn.q_a_proj.weight", (attention.query_rank, D)
        yield "self_attn.q_a_layernorm.weight", (attention.query_rank,)
        yield "self_attn.q_b_proj.weight", (H * attention.head_width, attention.query_rank)
    else:
        yield "self_attn.q_proj.weight", (H * attention.head_width, D)
    yield "self_attn.kv_a_proj_with_mqa.weight", (C + P, D)
    yield "self_attn.kv_a_layernorm.weight", (C,)
    yield "self_attn.kv_b_proj.weight", (H * (attention.plain_width + attention.value_width), C)
    yield "self_attn.o_proj.weight", (D, H * attention.value_width)


def grouped_attention_tensors(attention: GroupedAttentionConfig, D: int) -> Iterator[tuple[str, Shape]]:
    query_width = attention.num_heads * attention.head_width
    key_width = attention.num_kv_heads * attention.head_width
    yield "self_attn.q_proj.weight", (query_width, D)
    yield "self_attn.k_proj.weight", (key_width, D)
    yield "self_attn.v_proj.weight", (key_width, D)
    yield "self_attn.o_proj.weight", (D, query_width)


def moe_tensors(moe: MoeConfig, D: int) -> Iterator[tuple[str, Shape]]:
    yield "mlp.gate.weight", (moe.num_experts, D)
    yield "mlp.gate.e_score_correction_bias", (moe.num_experts,)
    for expert in range(moe.num_experts):
        yield from feed_forward_tensors(f"mlp.experts.{expert}.", D, moe.expert_hidden_size)
    if moe.num_shared_experts:
        yield from feed_forward_tensors(
            "mlp.shared_experts.", D, moe.num_shared_experts * moe.expert_hidden_size
        )


def feed_forward_tensors(prefix: str, D: int, F: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}gate_proj.weight", (F, D)
    yield f"{prefix}up_proj.weight", (F, D)
    yield f"{prefix}down_proj.weight", (D, F)
