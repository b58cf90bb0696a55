"""Every kernel against torch in fp32: at most twice the error of torch with inputs of the same precision."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.sampling import sampling_rows
from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels

PART = "correctness"
MOST_OF_TORCH = 2.0


@torch.inference_mode()
def measure(bench: Bench) -> Iterator[Finding]:
    """Yields each kernel's error as a multiple of torch's, and how many choices differ from torch's."""
    reference = load_kernels("torch")
    wide = replace(bench, dtype=torch.float32)
    for name, check in CHECKS.items():
        found = check(bench, bench.kernels)
        multiple = error(found, plain=check(bench, reference), exact=check(wide, reference))
        yield Finding.at_most(PART, name, multiple, "of torch's", MOST_OF_TORCH)
    for name, num_different in choices(bench, reference):
        yield Finding.at_most(PART, name, num_different, "differ", 0)


def error(found: Tensor, plain: Tensor, exact: Tensor) -> float:
    """Returns the largest error by torch's, half a unit in the last place forgiven; NaN is infinite."""
    half_unit = exact.abs() * torch.finfo(found.dtype).eps / 2
    own = ((found.float() - exact).abs() - half_unit).amax()
    others = (plain.float() - exact).abs().amax().clamp(min=1e-9)
    return (own / others).nan_to_num(nan=torch.inf).item()


def choices(bench: Bench, reference: Kernels) -> Iterator[tuple[str, int]]:
    """Yields how many experts and tokens are chosen otherwise than by torch."""
    moe = bench.moe
    logits = bench.normal(64, moe.num_experts, seed=1, dtype=torch.float32)
    bias = bench.normal(moe.num_experts, seed=2, dtype=torch.float32) / 16
    found, expected = (kernels.gate(logits, bias, moe.gate_rule) for kernels in (bench.kernels, reference))
    yield "gate: experts", int((found.experts != expected.experts).sum())
    scores = 4 * bench.normal(16, bench.model.vocab_size, seed=3, dtype=torch.float32)
    for top_p in (1.0, 0.9):
        rows = sampling_rows(bench, 16, top_p)
        found_tokens = bench.kernels.sample_and_verify(scores, scores, rows).tokens
        expected_tokens = reference.sample_and_verify(scores, scores, rows).tokens
        yield f"sample_and_verify, top-p {top_p:g}: tokens", int((found_tokens != expected_tokens).sum())
