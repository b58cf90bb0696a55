"""Launches of kernels that work row by row: norms, rotary, gate, activation, sampling."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks import published
from benchmarks.aot.case import FEW_TOKENS, Case, Setting, meta
from outrider.kernels.interface import Angles, LatentNorm, Place, SamplingRows

MAX_NUM_SAMPLED = 16 * 256
SAMPLING_NAMES = {
    "choose_kernel": "sample_verify",
    "maxima_kernel": "sample_maxima",
    "histogram_kernel": "sample_histogram",
    "pick_kernel": "sample_pick",
    "verify_kernel": "sample_compare",
}


def row_cases(setting: Setting) -> Iterator[Case]:
    """Yields the launches of one setting."""
    kernels, config, T = setting.kernels, setting.config, setting.num_tokens
    D, F = config.hidden_size, config.dense_hidden_size // setting.num_ranks
    yield from setting.cases({}, lambda: kernels.rms_norm(meta(T, D), _wide(D), 1e-6), hidden=D)
    yield from setting.cases(
        {"rms_norm_kernel": "add_rms_norm"},
        lambda: kernels.add_rms_norm(meta(T, D), meta(T, D), _wide(D), 1e-6),
        hidden=D,
    )
    yield from setting.cases({}, lambda: kernels.silu_product(meta(T, 2 * F)), expert_hidden=F)
    yield from latent_cases(setting)
    yield from gate_cases(setting)
    if setting.num_ranks == 1:
        yield from sampling_cases(setting)
    else:
        yield from part_cases(setting)


def part_cases(setting: Setting) -> Iterator[Case]:
    """Yields the addition of what few ranks and all computed of a layer."""
    T, D = setting.num_tokens, setting.config.hidden_size
    for num_parts in (2, setting.num_ranks):
        parts = meta(num_parts, T, D)
        yield from setting.cases(
            {}, lambda parts=parts: setting.kernels.add_parts(parts), hidden=D, parts=num_parts
        )


def latent_cases(setting: Setting) -> Iterator[Case]:
    """Yields norm, rotary and cache write as one launch."""
    attention, T = published.latent(setting.config), setting.num_tokens
    C, P, H = attention.latent_width, attention.rotary_width, setting.num_heads
    angles = Angles(cos=_wide(T, P // 2), sin=_wide(T, P // 2), interleaved=True)
    place = Place(cache=meta(16 * T, C + P), slots=meta(T, dtype=torch.int64), angles=angles)
    norm = LatentNorm(weight=_wide(C), epsilon=1e-6)
    # Both are parts of wider rows, as the layer cuts them.
    row, query = meta(T, C + P + 1536)[:, : C + P], meta(T, H, attention.head_width)[..., -P:]
    yield from setting.cases(
        {"write_latent_kernel": "norm_rotary"},
        lambda: setting.kernels.write_latent(row, query, norm, place),
        heads=H,
        latent=C,
        rotary=P,
    )


def gate_cases(setting: Setting) -> Iterator[Case]:
    """Yields the choice of experts, of which every rank makes all."""
    moe, T = published.experts(setting.config), setting.num_tokens
    E = moe.num_experts
    yield from setting.cases(
        {},
        lambda: setting.kernels.gate(_wide(T, E), _wide(E), moe.gate_rule),
        experts=E,
        groups=moe.num_groups,
    )


def sampling_cases(setting: Setting) -> Iterator[Case]:
    """Yields sampling and verifying, with filters and without."""
    V = setting.config.vocab_size
    R = FEW_TOKENS if setting.num_tokens == FEW_TOKENS else MAX_NUM_SAMPLED
    for any_top_k, any_top_p in ((False, False), (True, True)):
        rows = SamplingRows(
            parameters=meta(R, 8, dtype=torch.float64),
            drafts=meta(R, dtype=torch.int64),
            firsts=meta(R // 8 + 1, dtype=torch.int64),
            any_top_k=any_top_k,
            any_top_p=any_top_p,
        )
        scores = _wide(R, V)
        yield from setting.cases(
            SAMPLING_NAMES,
            lambda rows=rows, scores=scores: setting.kernels.sample_and_verify(scores, scores, rows),
            vocabulary=V,
            filters=int(any_top_p),
        )


def _wide(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.float32)
