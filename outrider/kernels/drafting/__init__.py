"""Kernels for guesses alone: torch's own operations, in half the time of the reference backend's few rows.

A row's bits may depend on its neighbours here, so no group may serve with them; a draft may be computed so.
"""

import torch

from outrider.kernels.drafting.attention import grouped_attention, latent_attention, plan_attention
from outrider.kernels.drafting.linear import head_linear, linear, pack_head_linear, pack_linear
from outrider.kernels.drafting.rows import add_rms_norm, rms_norm, silu_product
from outrider.kernels.torch import (
    add_parts,
    combine,
    experts,
    gate,
    pack_experts,
    replace_expert,
    rotate,
    sample_and_verify,
    write_latent,
)

NAME = "drafting"
VERSION = 1
LIBRARIES = torch.__version__
CAPTURABLE = False

__all__ = [
    "CAPTURABLE",
    "LIBRARIES",
    "NAME",
    "VERSION",
    "add_parts",
    "add_rms_norm",
    "combine",
    "experts",
    "gate",
    "grouped_attention",
    "head_linear",
    "latent_attention",
    "linear",
    "pack_experts",
    "pack_head_linear",
    "pack_linear",
    "plan_attention",
    "replace_expert",
    "rms_norm",
    "rotate",
    "sample_and_verify",
    "silu_product",
    "write_latent",
]
