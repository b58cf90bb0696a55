"""Kernels for GPUs, written in Triton; what runs there under its interpreter runs anywhere."""

import torch
import triton

from outrider.kernels.triton.add_parts import add_parts
from outrider.kernels.triton.attention_plan import plan_attention
from outrider.kernels.triton.combine import combine
from outrider.kernels.triton.experts import experts, pack_experts, replace_expert
from outrider.kernels.triton.gate import gate
from outrider.kernels.triton.grouped_attention import grouped_attention
from outrider.kernels.triton.head_linear import head_linear, pack_head_linear
from outrider.kernels.triton.latent_attention import latent_attention
from outrider.kernels.triton.linear import linear, pack_linear
from outrider.kernels.triton.rms_norm import add_rms_norm, rms_norm
from outrider.kernels.triton.rotate import rotate
from outrider.kernels.triton.sample_verify import sample_and_verify
from outrider.kernels.triton.silu_product import silu_product
from outrider.kernels.triton.write_latent import write_latent

NAME = "triton"
VERSION = 1  # raise it whenever the bits of any kernel change
LIBRARIES = f"{torch.__version__}, triton {triton.__version__}"
CAPTURABLE = True

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
