"""What the card itself reaches: copying, and multiplying large matrices."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.stopwatch import seconds

PART = "card"


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields the rates that the other parts are compared with."""
    yield Finding(part=PART, name="copy, read and written", value=copy_rate(bench) / 1e12, unit="TB/s")
    yield Finding(part=PART, name="matrix product", value=product_rate(bench) / 1e12, unit="TFLOP/s")


def copy_rate(bench: Bench) -> float:
    """Returns the bytes per second that a copy reads and writes."""
    num_bytes = 2**20 if bench.is_tiny else 2**31
    source = torch.ones(num_bytes // 4, device=bench.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds([partial(target.copy_, source)] * 4, bench.device)


def product_rate(bench: Bench) -> float:
    """Returns the multiplications and additions per second of the library's product in the bench's type."""
    size = 64 if bench.is_tiny else 8192
    x, y = bench.normal(size, size, seed=1), bench.normal(size, size, seed=2)
    out = torch.empty_like(x)
    return 2 * size**3 / seconds([partial(torch.mm, x, y, out=out)] * 4, bench.device)
