"""The type that a model computes in when none is asked for."""

import torch

# Processor features, any of which multiplies the type itself.
MULTIPLIED_BY = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16"),
}


def default_dtype(stored: torch.dtype, device: torch.device) -> torch.dtype:
    """The stored type where the device multiplies it, else fp32, which holds the same weights.

    A processor without such instructions emulates products of bf16, at a quarter of the speed of fp32.
    """
    if device.type != "cpu" or stored not in MULTIPLIED_BY:
        return stored
    processor = torch.cpu.get_capabilities()
    return stored if any(processor.get(name, False) for name in MULTIPLIED_BY[stored]) else torch.float32
