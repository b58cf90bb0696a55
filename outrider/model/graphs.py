"""Steps in buckets of fixed size, each a CUDA graph: a step is one copy and one launch, not a thousand.

A step takes the smallest bucket that holds its rows and sequences. What there is beyond them is padding:

    rows    | rows of sequence 0 | of sequence 1 | ... | padding, in a block that no sequence owns |
    spans   | sequence 0 | sequence 1 | ... | spans without rows | the padding's span |

A row's bits are its own, so neither padding nor bucket shows in a result. Padding wakes no experts: on a
mixture of experts they would be the dearest part of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from outrider.model.batch import ForwardBatch, ForwardResult, Span, StepInputs, Tap
from outrider.model.kv_cache import KVCache
from outrider.model.transfer import StaticCopy, tensors_of, with_tensors
from outrider.model.transformer import Transformer

MAX_ROWS_PER_SEQUENCE = 16
"""What buckets are made for, on average: decoding and verification. Chunks of prompts go as they are."""


@dataclass(frozen=True, kw_only=True, order=True)
class Bucket:
    """The size of a step; ordered so that the first that holds a step is the best."""

    num_rows: int
    num_sequences: int
    min_num_rows: int  # steps of fewer rows have a smaller bucket

    @property
    def is_exact(self) -> bool:
        """Whether its steps need no padding."""
        return self.min_num_rows == self.num_rows

    def holds(self, batch: ForwardBatch) -> bool:
        """Whether it is for such a batch."""
        num_rows, num_sequences = len(batch.token_ids), len(batch.spans)
        if num_sequences > self.num_sequences or num_rows > num_sequences * MAX_ROWS_PER_SEQUENCE:
            return False
        return self.min_num_rows <= num_rows <= self.num_rows


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A bucket's step: where its inputs lie, and what computes them."""

    inputs: StaticCopy
    compute: Callable[[], ForwardResult]


def make_buckets(
    num_sequences: Iterable[int], num_rows: Iterable[int], *, max_num_rows: int
) -> tuple[Bucket, ...]:
    """Every pair of use: neither more rows than the sequences have, nor so few that fewer sequences do."""
    return tuple(
        Bucket(num_rows=rows, num_sequences=sequences, min_num_rows=fewer_rows + 1)
        for fewer_rows, rows in pairwise([0, *sorted(set(num_rows))])
        for fewer_sequences, sequences in pairwise([0, *sorted(set(num_sequences))])
        if rows <= max_num_rows and fewer_sequences < rows <= sequences * MAX_ROWS_PER_SEQUENCE
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
        self._spare_block = kv_cache.num_blocks - 1
        self._tap_layers = tap_layers
        longest = max([max_model_len, *(bucket.num_rows for bucket in self._buckets)])
        self._max_num_blocks = -(-longest // kv_cache.block_size)
        self.recordings: dict[Bucket, Recording] = {}
        self._results: ForwardResult | None = None

    def warm_up(self, max_num_rows: int) -> None:
        """Runs steps as they are, all with logits: kernels are compiled, and the largest's memory is there.

        Of each size that graphs have and their steps may not, two: kernels are compiled anew for numbers that
        16 does not divide.
        """
        sizes = {bucket.num_rows for bucket in self._buckets if bucket.num_rows > MAX_ROWS_PER_SEQUENCE}
        for size in sorted({max_num_rows, *sizes}, reverse=True):
            for num_rows in (size, max(1, size - 1)):
                batch = replace(self._spare_batch(num_rows), logit_rows=torch.arange(num_rows))
                self.model.forward(batch, self.kv_cache)

    @torch.inference_mode()
    def record(self, report: Callable[[int, int], None]) -> None:
        """Makes every bucket ready; `report` hears how many of how many are."""
        device = self.model.device
        recorder = GraphRecorder() if device.type == "cuda" else None
        self._results = self._room_for_results()
        # The largest first: the others find room in the memory that it took.
        for number, bucket in enumerate(reversed(self._buckets), 1):
            inputs = StaticCopy(self._lay_out(self._spare_batch(bucket.num_rows), bucket), device)
            run = partial(self._compute, inputs.value)
            compute = recorder.record(run) if recorder else run
            self.recordings[bucket] = Recording(inputs=inputs, compute=compute)
            report(number, len(self._buckets))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """Computes a batch as Transformer.forward does; what it gives is good until the next step."""
        bucket = next((bucket for bucket in self._buckets if bucket.holds(batch)), None)
        if bucket is None:
            return self.model.forward(batch, self.kv_cache)
        assert batch.tap is None or batch.tap.layers == self._tap_layers
        recording = self.recordings[bucket]
        recording.inputs.fill(self._lay_out(batch, bucket))
        result = recording.compute()
        tapped, experts = None, None
        if batch.tap and result.tapped is not None:
            tapped = result.tapped[: len(batch.tap.rows)]
        if result.experts is not None:
            experts = result.experts[:, : len(batch.token_ids)]
        logits = result.logits[: len(batch.logit_rows)]
        return replace(result, logits=logits, experts=experts, tapped=tapped)

    def _compute(self, inputs: StepInputs) -> ForwardResult:
        """Computes a bucket, and leaves the result where all do: room for each would take gigabytes."""
        result = self.model.compute(inputs, self.kv_cache)
        pairs = zip(tensors_of(self._results), tensors_of(result), strict=True)
        return with_tensors(
            result, [room.view(-1)[: found.numel()].view_as(found).copy_(found) for room, found in pairs]
        )

    def _room_for_results(self) -> ForwardResult:
        config, device = self.model.config, self.model.device
        T = max((bucket.num_rows for bucket in self._buckets), default=0)
        num_moe_layers = config.num_layers - config.num_dense_layers
        num_chosen = T * config.moe.num_experts_per_token if config.moe else 0
        counts = torch.empty(num_moe_layers, dtype=torch.int64, device=device)
        experts = torch.empty(num_moe_layers, num_chosen, dtype=torch.int64, device=device)
        tapped = torch.empty(
            T, len(self._tap_layers) * config.hidden_size, dtype=self.model.dtype, device=device
        )
        return ForwardResult(
            logits=torch.empty(T, config.vocab_size, device=device),
            num_distinct_experts=counts if config.moe else None,
            experts=experts if config.moe else None,
            tapped=tapped if self._tap_layers else None,
        )

    def _lay_out(self, batch: ForwardBatch, bucket: Bucket) -> StepInputs:
        """Lays out a batch in the shapes of its bucket; every row's hidden vectors are at hand if any are."""
        num_rows, T = len(batch.token_ids), bucket.num_rows
        padding = self._spare_batch(T - num_rows, first_row=num_rows)
        tap = None
        if self._tap_layers:
            rows = batch.tap.rows if batch.tap else padding.logit_rows
            tap = Tap(rows=_pad(rows, T), layers=self._tap_layers)
        padded = ForwardBatch(
            token_ids=torch.cat([batch.token_ids, padding.token_ids]),
            positions=torch.cat([batch.positions, padding.positions]),
            slots=torch.cat([batch.slots, padding.slots]),
            spans=self._spans(batch, padding, bucket),
            logit_rows=_pad(batch.logit_rows, T),
            tap=tap,
        )
        is_padding = None if bucket.is_exact else torch.arange(T) >= num_rows
        return replace(self.model.lay_out(padded, self.kv_cache.block_size), padding=is_padding)

    def _spans(self, batch: ForwardBatch, padding: ForwardBatch, bucket: Bucket) -> tuple[Span, ...]:
        """The batch's spans, some without rows, and the padding's; the last names as many blocks as any."""
        empty = Span(first_row=bucket.num_rows, num_rows=0, num_context=0, block_ids=[])
        spans = [*batch.spans, *[empty] * (bucket.num_sequences - len(batch.spans))]
        *others, last = spans if bucket.is_exact else [*spans, *padding.spans]
        blocks = torch.as_tensor(last.block_ids, dtype=torch.int64)
        return (*others, replace(last, block_ids=_pad(blocks, self._max_num_blocks, self._spare_block)))

    def _spare_batch(self, num_rows: int, *, first_row: int = 0) -> ForwardBatch:
        """Rows that lie in the spare block, one over the other where there are more of them than slots."""
        size, places = self.kv_cache.block_size, torch.arange(num_rows)
        blocks = [self._spare_block] * -(-num_rows // size)
        return ForwardBatch(
            token_ids=torch.zeros_like(places),
            positions=places,
            slots=self._spare_block * size + places % size,
            spans=(Span(first_row=first_row, num_rows=num_rows, num_context=num_rows, block_ids=blocks),),
            logit_rows=places[:0],
        )


class GraphRecorder:
    """Records CUDA graphs, all of which share one pool of memory, as only one of them runs at a time.

    Exchanges between ranks are part of a graph: all ranks record the same ones in the same order, and launch
    them so. A communicator waits for the graphs that use it before it can be destroyed.
    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs and NCCL's guide, "Using NCCL with
    CUDA Graphs".
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, run: Callable[[], ForwardResult]) -> Callable[[], ForwardResult]:
        """Returns what launches the same as `run`, and gives the same tensors each time."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Kernels are compiled, libraries prepare themselves and ranks connect, which cannot be captured.
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may do as they please: they leave the device alone. NCCL's asks after exchanges that
        # were made before.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = run()

        def replay() -> ForwardResult:
            graph.replay()
            return result

        return replay


def _pad(values: Tensor, length: int, value: int = 0) -> Tensor:
    """A vector with `value` behind its own elements."""
    return torch.nn.functional.pad(values, (0, length - len(values)), value=value)
