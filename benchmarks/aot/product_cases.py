"""Launches of the products that all rows take part in."""

from collections.abc import Iterator

import torch

from benchmarks import published
from benchmarks.aot.case import Case, Setting, meta, stored

PRODUCT_KERNELS: tuple[str, ...] = ("plain_product_kernel", "fp8_product_kernel", "fp32_product_kernel")


def product_cases(setting: Setting) -> Iterator[Case]:
    """Yields the launches of one setting."""
    kernels, T = setting.kernels, setting.num_tokens
    for N, K in dict.fromkeys(linear_shapes(setting)):
        for dtype in ("bf16", "fp8"):
            weight = kernels.pack_linear(stored(dtype, N, K))
            yield from setting.cases(
                {**dict.fromkeys(PRODUCT_KERNELS, "linear"), "quantize_kernel": "quantize"},
                lambda K=K, weight=weight: kernels.linear(meta(T, K), weight),
                dtype=dtype,
                products=("linear",),
                outputs=N,
                inputs=K,
            )
    yield from head_product_cases(setting)
    E, D = published.experts(setting.config).num_experts, setting.config.hidden_size
    gate = kernels.pack_linear(meta(E, D, dtype=torch.float32))
    # In full fp32, which tensor cores do not multiply in.
    names = dict.fromkeys(PRODUCT_KERNELS, "gate_linear")
    yield from setting.cases(
        names, lambda: kernels.linear(meta(T, D, dtype=torch.float32), gate), outputs=E, hidden=D
    )


def linear_shapes(setting: Setting) -> Iterator[tuple[int, int]]:
    """Yields (outputs, inputs) of a rank's share of the products."""
    config, attention = setting.config, published.latent(setting.config)
    D, H = config.hidden_size, setting.num_heads
    rank = attention.query_rank or 0
    yield attention.kv_width + rank, D
    yield H * attention.head_width, rank
    yield D, H * attention.value_width
    for F in (published.experts(config).expert_hidden_size, config.dense_hidden_size):
        yield 2 * F // setting.num_ranks, D
        yield D, F // setting.num_ranks
    yield config.vocab_size // setting.num_ranks, D


def head_product_cases(setting: Setting) -> Iterator[Case]:
    """Yields the products of each head, into the latent space and out of it."""
    attention, T, H = published.latent(setting.config), setting.num_tokens, setting.num_heads
    C, kernels = attention.latent_width, setting.kernels
    for N, K in ((C, attention.plain_width), (attention.value_width, C)):
        weight = kernels.pack_head_linear(meta(H, K, N))
        yield from setting.cases(
            dict.fromkeys(PRODUCT_KERNELS, "head_linear"),
            lambda K=K, weight=weight: kernels.head_linear(meta(T, H, K), weight),
            products=("head_linear",),
            heads=H,
            outputs=N,
            inputs=K,
        )
