"""Launches of the routed experts."""

from collections.abc import Iterator

import torch

from benchmarks import published
from benchmarks.aot.case import Case, Setting, meta, stored
from outrider.kernels.interface import Choice

NAMES = {
    "align_kernel": "align",
    "quantize_kernel": "quantize",
    "gate_up_kernel": "moe_gate_up",
    "down_kernel": "moe_down",
    "combine_kernel": "combine",
}
PRODUCTS = ("moe_gate_up", "moe_down")


def expert_cases(setting: Setting) -> Iterator[Case]:
    """Yields the launches of one setting, for experts stored in every form."""
    kernels, moe, T = setting.kernels, published.experts(setting.config), setting.num_tokens
    D, F, E, A = (
        setting.config.hidden_size,
        moe.expert_hidden_size,
        setting.num_experts,
        moe.num_experts_per_token,
    )
    choice = Choice(experts=meta(T, A, dtype=torch.int64), weights=meta(T, A, dtype=torch.float32))
    for dtype in ("bf16", "fp8", "int4"):
        packed = kernels.pack_experts([stored(dtype, 2 * F, D)] * E, [stored(dtype, D, F)] * E)
        sizes = {"hidden": D, "expert_hidden": F, "experts": E, "experts_per_token": A}
        yield from setting.cases(
            NAMES,
            lambda packed=packed: kernels.experts(meta(T, D), choice, packed),
            dtype=dtype,
            products=PRODUCTS,
            **sizes,
        )
    yield from setting.cases(
        NAMES, lambda: kernels.combine(meta(T, A, D), choice, meta(T, D)), hidden=D, experts_per_token=A
    )
