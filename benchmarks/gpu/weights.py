"""Random weights in every form that checkpoints store them in."""

from math import ceil

import torch

from benchmarks.gpu.bench import Bench
from outrider.kernels.weights import FP8_BLOCK, INT4_GROUP, Fp8Weight, Int4Weight, StoredWeight

# Of four bits spread evenly over -8 to 7.
INT4_DEVIATION = 4.6
STORAGES = ("bf16", "int4", "fp8")


def random_weight(bench: Bench, storage: str, num_outputs: int, num_inputs: int, seed: int) -> StoredWeight:
    """Returns a weight [N, K] whose products with normal rows are about normal."""
    if storage == "int4":
        return int4_weight(bench, num_outputs, num_inputs, seed)
    plain = bench.normal(num_outputs, num_inputs, seed=seed)
    if storage == "bf16":
        # A power of two, so that the numbers stay those of the bench's precision.
        return plain * 2.0 ** -round(torch.tensor(num_inputs**0.5).log2().item())
    blocks = ceil(num_outputs / FP8_BLOCK), ceil(num_inputs / FP8_BLOCK)
    scales = torch.full(blocks, num_inputs**-0.5, device=bench.device)
    return Fp8Weight(values=plain.to(torch.float8_e4m3fn), scales=scales, dtype=bench.dtype)


def int4_weight(bench: Bench, num_outputs: int, num_inputs: int, seed: int) -> Int4Weight:
    """Returns such a weight in int4."""
    generator = torch.Generator(bench.device).manual_seed(seed)
    shape = (num_outputs, num_inputs // 8)
    packed = torch.randint(
        -(2**31), 2**31, shape, generator=generator, device=bench.device, dtype=torch.int32
    )
    groups = (num_outputs, num_inputs // INT4_GROUP)
    scales = torch.full(groups, num_inputs**-0.5 / INT4_DEVIATION, device=bench.device)
    return Int4Weight(packed=packed, scales=scales.bfloat16(), dtype=bench.dtype)
