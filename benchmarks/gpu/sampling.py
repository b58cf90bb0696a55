"""Sampling and verifying: few rows with top-p, and as many as a step may have."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.card import copy_rate
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.stopwatch import seconds
from outrider.kernels.interface import SamplingRows

PART = "sampling"
MOST_FOR_FEW = 60e-6
MOST_BY_READING = 3.0


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields times by rows and filters, by the time to read the scores once."""
    vocab_size, rate = bench.model.vocab_size, copy_rate(bench)
    few, many = bench.sizes((8, 4096), (2, 8))
    for num_rows in (few, many):
        num_inputs = 2 if bench.is_tiny or num_rows == many else 64
        scores = [
            4 * bench.normal(num_rows, vocab_size, seed=seed, dtype=torch.float32)
            for seed in range(num_inputs)
        ]
        for top_p in (0.95, 1.0):
            rows = sampling_rows(bench, num_rows, top_p)
            runs = [partial(bench.kernels.sample_and_verify, item, item, rows) for item in scores]
            time = seconds(runs, bench.device)
            name = f"{num_rows} rows, top-p {top_p:g}"
            if top_p < 1 and num_rows == few:
                yield Finding.at_most(PART, name, 1e6 * time, "us", 1e6 * MOST_FOR_FEW)
            else:
                yield Finding(part=PART, name=name, value=1e6 * time, unit="us")
            by_reading = time / (scores[0].nbytes / rate)
            if num_rows == many:
                yield Finding.at_most(PART, f"{name}: by reading once", by_reading, "", MOST_BY_READING)
        eager = [partial(_eager, item) for item in scores]
        time = seconds(eager, bench.device)
        yield Finding(
            part=PART, name=f"{num_rows} rows: torch, softmax and argmax", value=1e6 * time, unit="us"
        )
        del scores, runs, eager


def sampling_rows(
    bench: Bench, num_rows: int, top_p: float, *, num_rows_per_sequence: int = 8
) -> SamplingRows:
    """Returns rows sampled at temperature 0.8, with a draft at all of a sequence but its last."""
    places = torch.arange(num_rows)
    parameters = torch.zeros(num_rows, 8, dtype=torch.float64)
    parameters[:, 0], parameters[:, 2], parameters[:, 3] = 0.8, top_p, -torch.inf
    parameters[:, 4] = places // num_rows_per_sequence + 1
    parameters[:, 7] = places % num_rows_per_sequence + 100
    is_last = (places % num_rows_per_sequence == num_rows_per_sequence - 1) | (places == num_rows - 1)
    firsts = torch.arange(0, num_rows + num_rows_per_sequence, num_rows_per_sequence).clamp(max=num_rows)
    return SamplingRows(
        parameters=parameters.to(bench.device),
        drafts=places.where(~is_last, -1).to(bench.device),
        firsts=firsts.to(bench.device),
        any_top_k=False,
        any_top_p=top_p < 1,
    )


def _eager(scores: torch.Tensor) -> torch.Tensor:
    noise = torch.empty_like(scores).exponential_()
    return (scores.div(0.8).softmax(-1) / noise).argmax(-1)
