"""The names and shapes of the tensors that a config demands of its checkpoint."""

from collections.abc import Iterator

from outrider.model.config import GroupedAttentionConfig, LatentAttentionConfig, ModelConfig, MoeConfig

Shape = tuple[int, ...]


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that is read, with its shape as Hugging Face stores it: [outputs, inputs]."""
    D = config.hidden_size
    expected = {"model.embed_tokens.weight": (config.vocab_size, D), "model.norm.weight": (D,)}
    if not config.tied_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, D)
    for layer in range(config.num_layers):
        expected.update(
            (f"model.layers.{layer}.{name}", shape) for name, shape in layer_tensors(config, layer)
        )
    return expected


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
