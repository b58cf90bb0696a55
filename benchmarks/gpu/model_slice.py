"""The first layers of Kimi K2.5 with random weights: whole steps, in CUDA graphs, as a worker takes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.random_checkpoint import random_model
from benchmarks.gpu.sampling import sampling_rows
from outrider.kernels.weights import INT4_GROUP
from outrider.model.batch import ForwardBatch, Span
from outrider.model.graphs import Bucket, StepRunner

PART = "model_slice"
BLOCK_SIZE = 64
NUM_LAYERS = 12
CONTEXT = 1000
ACCEPTANCE = 0.8
"""The chance that a drafted token is right, if those before it were."""
NUM_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """How many sequences, and how many drafts of each."""

    num_sequences: int
    num_drafts: int

    @property
    def num_rows(self) -> int:
        """Rows of a step."""
        return self.num_sequences * (1 + self.num_drafts)

    @property
    def num_output_tokens(self) -> float:
        """Tokens that a step is expected to yield."""
        return self.num_sequences * sum(ACCEPTANCE**place for place in range(1 + self.num_drafts))


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields the time of a step and the tokens per second that it comes to."""
    num_layers = bench.model.num_layers if bench.is_tiny else min(NUM_LAYERS, num_layers_that_fit(bench))
    bench = bench.with_model(num_layers=num_layers)
    yield Finding(part=PART, name="layers, the first of them dense", value=num_layers, unit="")
    context = bench.sizes((CONTEXT,), (20,))[0]
    counts = bench.sizes((1, 8), (1, 2))
    drafts = bench.sizes((0, 1, 3, 4, 7), (1,))
    sizes = [StepSize(num_sequences=count, num_drafts=number) for count in counts for number in drafts]
    runner = make_runner(bench, sizes, context)
    for size in sizes:
        time = step_seconds(bench, runner, size, context)
        name = f"{size.num_sequences} sequences, {size.num_drafts} drafts each"
        yield Finding(part=PART, name=f"{name}: step", value=1e6 * time, unit="us")
        rate = size.num_output_tokens / time
        yield Finding(part=PART, name=f"{name}: output at {ACCEPTANCE:g}", value=rate, unit="tokens/s")


def num_layers_that_fit(bench: Bench) -> int:
    """Returns how many layers find room; the first, dense one is small, and leaves room for packing."""
    D, F = bench.model.hidden_size, bench.moe.expert_hidden_size
    per_layer = 3 * D * F * bench.moe.num_experts * (0.5 + 2 / INT4_GROUP) * 1.05
    free, _ = torch.cuda.mem_get_info()
    others = 2 * bench.model.vocab_size * D * bench.dtype.itemsize
    return int((0.9 * free - others) / per_layer)


def make_runner(bench: Bench, sizes: list[StepSize], context: int) -> StepRunner:
    """Loads the model and captures a graph for every size."""
    model = random_model(bench)
    longest = context + max(size.num_drafts for size in sizes) + 1
    num_blocks = max(size.num_sequences for size in sizes) * -(-longest // BLOCK_SIZE) + 1
    buckets = [
        Bucket(num_rows=size.num_rows, num_sequences=size.num_sequences, min_num_rows=size.num_rows)
        for size in sizes
    ]
    runner = StepRunner(model, model.new_kv_cache(num_blocks, BLOCK_SIZE), buckets, max_model_len=longest)
    runner.record(lambda done, total: None)
    return runner


def step_seconds(bench: Bench, runner: StepRunner, size: StepSize, context: int) -> float:
    """Returns the median time of a step: laid out, computed, sampled, and its tokens read by the host."""
    rows = sampling_rows(bench, size.num_rows, top_p=1.0, num_rows_per_sequence=1 + size.num_drafts)
    times = []
    for step in range(1 if bench.is_tiny else NUM_STEPS):
        batch = make_batch(bench, size, context, step)
        start = perf_counter()
        logits = runner.forward(batch).logits
        verified = bench.kernels.sample_and_verify(logits, logits, rows)
        verified.bonus.tolist()
        times.append(perf_counter() - start)
    return median(times)


def make_batch(bench: Bench, size: StepSize, context: int, seed: int) -> ForwardBatch:
    """Returns random tokens behind a context that was never computed: it costs the same."""
    num_rows = 1 + size.num_drafts
    num_blocks = -(-(context + num_rows) // BLOCK_SIZE)
    spans = tuple(
        Span(
            first_row=number * num_rows,
            num_rows=num_rows,
            num_context=context + num_rows,
            block_ids=list(range(number * num_blocks, (number + 1) * num_blocks)),
        )
        for number in range(size.num_sequences)
    )
    positions = torch.arange(context, context + num_rows).repeat(size.num_sequences)
    firsts = torch.arange(size.num_sequences).repeat_interleave(num_rows) * num_blocks * BLOCK_SIZE
    generator = torch.Generator().manual_seed(seed)
    return ForwardBatch(
        token_ids=torch.randint(0, bench.model.vocab_size, (size.num_rows,), generator=generator),
        positions=positions,
        slots=firsts + positions,
        spans=spans,
        logit_rows=torch.arange(size.num_rows),
    )
