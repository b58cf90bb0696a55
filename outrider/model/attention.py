"""The two kinds of attention layer; each writes its tokens into the cache, then attends over it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outrider.kernels.interface import Angles, Kernels, LatentNorm, Packed, Place
from outrider.kernels.weights import stack_outputs, to_plain
from outrider.model.config import (
    LATENT_NORM_EPSILON,
    GroupedAttentionConfig,
    LatentAttentionConfig,
    ModelConfig,
)
from outrider.model.kv_cache import write_tokens
from outrider.model.ranks import ALONE, Ranks, whole_of
from outrider.model.reader import Reader


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What every attention layer of a step shares."""

    slots: Tensor  # [T]
    angles: Angles
    plan: Packed


class Attention(Protocol):
    """One attention layer: [T, D] -> [T, D]; its config names the rank's own heads."""

    def __call__(self, x: Tensor, cache: Tensor, context: StepContext) -> Tensor: ...


class LatentAttention:
    """Multi-head latent attention in its absorbed form: keys and values are never decompressed.

    A query is carried into the latent space by its head's key matrix, and what it reads there is carried out
    by the value matrix.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: LatentAttentionConfig,
        reader: Reader,
        kernels: Kernels,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._ranks = ranks
        self._scale = model.softmax_scale
        # The query's first product has the same input as the latent's: one product computes both.
        # The query's comes first: it is whole FP8 blocks, of which the latent's width would cut one.
        inward = ["q_a_proj" if config.query_rank else "q_proj", "kv_a_proj_with_mqa"]
        self._inward = kernels.pack_linear(stack_outputs([reader.weight(name) for name in inward]))
        self._latent_norm = LatentNorm(
            weight=reader("kv_a_layernorm.weight", torch.float32), epsilon=LATENT_NORM_EPSILON
        )
        if config.query_rank:
            self._query_norm = reader("q_a_layernorm.weight", torch.float32)
            self._query_up = kernels.pack_linear(reader.weight("q_b_proj"))
        both = to_plain(reader.weight("kv_b_proj")).unflatten(0, (config.num_heads, -1))
        key_up, value_up = both.split([config.plain_width, config.value_width], dim=1)  # [H, width, C]
        self._key_up = kernels.pack_head_linear(key_up)
        self._value_up = kernels.pack_head_linear(value_up.transpose(1, 2))
        self._outward = kernels.pack_linear(reader.weight("o_proj"))

    def __call__(self, x: Tensor, cache: Tensor, context: StepContext) -> Tensor:
        kernels, config = self._kernels, self._config
        query, latent = kernels.linear(x, self._inward).tensor_split([-config.kv_width], dim=1)
        plain, turned = self._heads(query).split([config.plain_width, config.rotary_width], dim=2)
        place = Place(cache=cache, slots=context.slots, angles=context.angles)
        turned = kernels.write_latent(latent, turned, self._latent_norm, place)
        absorbed = kernels.head_linear(plain, self._key_up)
        mixed = kernels.latent_attention(absorbed, turned, cache, context.plan, self._scale)
        outward = kernels.linear(kernels.head_linear(mixed, self._value_up).flatten(1), self._outward)
        return whole_of(outward, kernels, self._ranks)

    def _heads(self, query: Tensor) -> Tensor:
        if self._config.query_rank:
            query = self._kernels.rms_norm(query, self._query_norm, LATENT_NORM_EPSILON)
            query = self._kernels.linear(query, self._query_up)
        return query.unflatten(1, (self._config.num_heads, -1))


class GroupedAttention:
    """Grouped-query attention: several query heads share a key and a value head."""

    def __init__(
        self,
        model: ModelConfig,
        config: GroupedAttentionConfig,
        reader: Reader,
        kernels: Kernels,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._ranks = ranks
        self._scale = model.softmax_scale
        inward = [reader.weight(name) for name in ("q_proj", "k_proj", "v_proj")]
        self._inward = kernels.pack_linear(stack_outputs(inward))
        self._outward = kernels.pack_linear(reader.weight("o_proj"))

    def __call__(self, x: Tensor, cache: Tensor, context: StepContext) -> Tensor:
        heads = self._kernels.linear(x, self._inward).unflatten(1, (-1, self._config.head_width))
        H, G = self._config.num_heads, self._config.num_kv_heads
        turned, values = heads.split([H + G, G], dim=1)
        turned = self._kernels.rotate(turned, context.angles)
        query, keys = turned.split([H, G], dim=1)
        write_tokens(cache, context.slots, torch.cat([keys, values], dim=1).flatten(1))
        mixed = self._kernels.grouped_attention(query, cache, context.plan, self._scale)
        outward = self._kernels.linear(mixed.flatten(1), self._outward)
        return whole_of(outward, self._kernels, self._ranks)


def load_attention(model: ModelConfig, reader: Reader, kernels: Kernels, ranks: Ranks = ALONE) -> Attention:
    """The kind of attention that the config names."""
    if isinstance(model.attention, LatentAttentionConfig):
        return LatentAttention(model, model.attention, reader, kernels, ranks)
    return GroupedAttention(model, model.attention, reader, kernels, ranks)
