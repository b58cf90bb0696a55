"""Steps in buckets of fixed size, each a CUDA graph: a step is one copy and one launch, not a thousand.

A step takes the smallest bucket that holds its rows and sequences. What there is beyond them is padding:

    rows    | rows of sequence 0 | of sequence 1 | ... | padding, in a block that no sequence owns |
    spans   | sequence 0 | sequence 1 | ... | the padding's span | spans without rows |

A row's bits are its own, so neither padding nor bucket shows in a result.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from outrider.model.batch import ForwardBatch, ForwardResult, Span, StepInputs, Tap
from outrider.model.kv_cache import KVCache
from outrider.model.transfer import StaticCopy
from outrider.model.transformer import Transformer

MAX_ROWS_PER_SEQUENCE = 16
"""What buckets are made for: decoding and verification; longer chunks of prompts go as they are."""


@dataclass(frozen=True, kw_only=True, order=True)
class Bucket:
    """The size of a step; ordered so that the first that holds a step is the best."""

    num_rows: int
    num_sequences: int

    def holds(self, batch: ForwardBatch) -> bool:
        """Whether a batch fits; padding takes a span of its own."""
        num_rows, num_spans = len(batch.token_ids), len(batch.spans)
        num_spans += num_rows < self.num_rows
        return num_rows <= self.num_rows and num_spans <= self.num_sequences


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A bucket's step: where its inputs lie, and what computes them."""

    inputs: StaticCopy
    compute: Callable[[], ForwardResult]


def make_buckets(
    num_sequences: Iterable[int], num_rows: Iterable[int], *, max_num_rows: int
) -> tuple[Bucket, ...]:
    """Every pair of use: neither more rows than the sequences have, nor so few that fewer sequences do."""
    pairs = list(pairwise([0, *sorted(set(num_sequences))]))
    return tuple(
        Bucket(num_rows=rows, num_sequences=sequences)
        for rows in sorted(set(num_rows))
        for fewer, sequences in pairs
        if rows <= max_num_rows and fewer < rows <= sequences * MAX_ROWS_PER_SEQUENCE
    )


class StepRunner:
    """Computes steps: in a bucket where one holds them, else as they are."""

    def __init__(
        self,
        model: Transformer,
        kv_cache: KVCache,
        buckets: Iterable[Bucket] = (),
        *,
        max_model_len: int = 0,
        tap_layers: tuple[int, ...] = (),
    ) -> None:
        """With buckets the last block of the cache is the padding's: no sequence may own it."""
        self.model = model
        self.kv_cache = kv_cache
        self._buckets = sorted(buckets)
        self._tap_layers = tap_layers
        longest = max([max_model_len, *(bucket.num_rows for bucket in self._buckets)])
        self._max_num_blocks = -(-longest // kv_cache.block_size)
        self._recordings: dict[Bucket, Recording] = {}

    @torch.inference_mode()
    def record(self, report: Callable[[int, int], None]) -> None:
        """Makes every bucket ready; `report` hears how many of how many are."""
        device = self.model.device
        recorder = GraphRecorder() if device.type == "cuda" else None
        # The largest first: the others find room in the memory that it took.
        for number, bucket in enumerate(reversed(self._buckets), 1):
            inputs = StaticCopy(self._lay_out(no_rows(), bucket), device)
            run = partial(self.model.compute, inputs.value, self.kv_cache)
            compute = recorder.record(run) if recorder else run
            self._recordings[bucket] = Recording(inputs=inputs, compute=compute)
            report(number, len(self._buckets))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """Computes a batch as Transformer.forward does; what it gives is good until the next step."""
        bucket = next((bucket for bucket in self._buckets if bucket.holds(batch)), None)
        if bucket is None:
            return self.model.forward(batch, self.kv_cache)
        recording = self._recordings[bucket]
        recording.inputs.fill(self._lay_out(batch, bucket))
        result = recording.compute()
        tapped = None
        if batch.tap and result.tapped is not None:
            tapped = result.tapped[: len(batch.tap.rows)]
        return replace(result, logits=result.logits[: len(batch.logit_rows)], tapped=tapped)

    def _lay_out(self, batch: ForwardBatch, bucket: Bucket) -> StepInputs:
        """Lays out a batch in the shapes of its bucket; every row's hidden vectors are at hand if any are."""
        num_rows, T = len(batch.token_ids), bucket.num_rows
        size, spare = self.kv_cache.block_size, self.kv_cache.num_blocks - 1
        places = torch.arange(T - num_rows)
        tap = None
        if self._tap_layers:
            rows = batch.tap.rows if batch.tap else places[:0]
            tap = Tap(rows=_pad(rows, T), layers=self._tap_layers)
        padded = ForwardBatch(
            token_ids=_pad(batch.token_ids, T),
            positions=torch.cat([batch.positions, places]),
            slots=torch.cat([batch.slots, spare * size + places % size]),
            spans=self._spans(batch, bucket),
            logit_rows=_pad(batch.logit_rows, T),
            tap=tap,
        )
        return replace(self.model.lay_out(padded, size), padding=torch.arange(T) >= num_rows)

    def _spans(self, batch: ForwardBatch, bucket: Bucket) -> tuple[Span, ...]:
        """The batch's spans, the padding's, and some without rows; the last names as many blocks as any."""
        num_rows, num_padding = len(batch.token_ids), bucket.num_rows - len(batch.token_ids)
        spare = self.kv_cache.num_blocks - 1
        spans = list(batch.spans)
        if num_padding:
            blocks = [spare] * -(-num_padding // self.kv_cache.block_size)
            spans.append(
                Span(first_row=num_rows, num_rows=num_padding, num_context=num_padding, block_ids=blocks)
            )
        empty = Span(first_row=bucket.num_rows, num_rows=0, num_context=0, block_ids=[])
        spans += [empty] * (bucket.num_sequences - len(spans))
        blocks = _pad(torch.as_tensor(spans[-1].block_ids, dtype=torch.int64), self._max_num_blocks, spare)
        return (*spans[:-1], replace(spans[-1], block_ids=blocks))


class GraphRecorder:
    """Records CUDA graphs, all of which share one pool of memory.

    Only one of them runs at a time, so a replay may overwrite what the one before gave.
    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, run: Callable[[], ForwardResult]) -> Callable[[], ForwardResult]:
        """Returns what launches the same as `run`, and gives the same tensors each time."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Kernels are compiled and libraries prepare themselves, which cannot be captured.
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # The other threads of the process leave the device alone, and may do as they please.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = run()

        def replay() -> ForwardResult:
            graph.replay()
            return result

        return replay


def no_rows() -> ForwardBatch:
    """A batch of nothing: in a bucket, all padding."""
    none = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(token_ids=none, positions=none, slots=none, spans=(), logit_rows=none)


def _pad(values: Tensor, length: int, value: int = 0) -> Tensor:
    """A vector with `value` behind its own elements."""
    return torch.nn.functional.pad(values, (0, length - len(values)), value=value)
