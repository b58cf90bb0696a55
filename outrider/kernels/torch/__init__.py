"""The reference backend: plain torch, on any processor; the other backends are compared with it."""

import torch

from outrider.kernels.torch.add_parts import add_parts
from outrider.kernels.torch.attention import grouped_attention, latent_attention
from outrider.kernels.torch.attention_plan import plan_attention
from outrider.kernels.torch.experts import combine, experts, pack_experts, replace_expert
from outrider.kernels.torch.gate import gate
from outrider.kernels.torch.linear import head_linear, linear, pack_head_linear, pack_linear
from outrider.kernels.torch.rms_norm import add_rms_norm, rms_norm
from outrider.kernels.torch.rotate import rotate
from outrider.kernels.torch.sample_verify import sample_and_verify
from outrider.kernels.torch.silu_product import silu_product
from outrider.kernels.torch.write_latent import write_latent

NAME = "torch"
VERSION = 1  # raise it whenever the bits of any kernel change
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
