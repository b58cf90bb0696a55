"""Whether a row's bits are its own: computed alone, among others, elsewhere, by every launch shape."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks import published
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.checks import BLOCK_SIZE
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.sampling import sampling_rows
from benchmarks.gpu.weights import STORAGES, random_weight
from outrider.kernels.interface import AttentionShape, Choice, Packed, SamplingRows
from outrider.kernels.triton.tiles import num_tiles
from outrider.model.batch import Span
from outrider.model.transfer import to_device

PART = "bits"
NUM_SAMPLED = 48
NUM_PADDING = 3

Rows = Callable[[Tensor], Tensor]
"""Computes rows; given their numbers [n], returns one result for each."""


@torch.inference_mode()
def measure(bench: Bench) -> Iterator[Finding]:
    """Yields how many rows come out otherwise in smaller batches than in the largest."""
    sizes = bench.sizes((1, 2, 4, 5, 16, 17, 33, 100, 500), (1, 5, 18))
    # Each compiles anew, and takes long.
    attention_sizes = bench.sizes((1, 17, 300), (1, 18))
    largest = bench.sizes((2048,), (20,))[0]
    for name, compute in kernels(bench, largest).items():
        num_rows = min(largest, NUM_SAMPLED) if name.startswith("sample") else largest
        whole = compute(torch.arange(num_rows))
        num_different = 0
        for size in attention_sizes if "attention" in name else sizes:
            # From the end backwards, so that rows are computed at other places too.
            rows = torch.arange(num_rows - 1, -1, -1)[:size]
            found = compute(rows)
            num_different += int((found != whole[rows.to(whole.device)]).flatten(1).any(1).sum())
        yield Finding.at_most(PART, name, num_different, "rows differ", 0)


def kernels(bench: Bench, num_rows: int) -> dict[str, Rows]:
    """Returns what is compared, by name."""
    products = {f"linear, {storage}": linear(bench, storage, num_rows) for storage in ("bf16", "fp8")}
    routed = {f"experts, {storage}, and padding": experts(bench, storage, num_rows) for storage in STORAGES}
    heads = (published.latent(bench.model).num_heads // 8, published.latent(bench.model).num_heads)
    attended = {f"latent_attention, {H} heads": latent_attention(bench, H, num_rows) for H in heads}
    others = {
        "gate's linear": gate_linear(bench, num_rows),
        "head_linear": head_linear(bench, num_rows),
        "grouped_attention": grouped_attention(bench, num_rows),
        "sample_and_verify": sampled(bench),
    }
    return products | routed | attended | others


def linear(bench: Bench, storage: str, num_rows: int) -> Rows:
    """A dense product."""
    D, attention = bench.model.hidden_size, published.latent(bench.model)
    N = attention.kv_width + (attention.query_rank or 0)
    weight = bench.kernels.pack_linear(random_weight(bench, storage, N, D, seed=1))
    x = bench.normal(num_rows, D)
    return lambda rows: bench.kernels.linear(x[rows], weight)


def gate_linear(bench: Bench, num_rows: int) -> Rows:
    """The product of the gate, in full fp32."""
    E, D = bench.moe.num_experts, bench.model.hidden_size
    weight = bench.kernels.pack_linear(bench.normal(E, D, seed=1, dtype=torch.float32))
    x = bench.normal(num_rows, D, dtype=torch.float32)
    return lambda rows: bench.kernels.linear(x[rows], weight)


def head_linear(bench: Bench, num_rows: int) -> Rows:
    """A product of each head."""
    attention = published.latent(bench.model)
    H, K, N = attention.num_heads // 8, attention.plain_width, attention.latent_width
    weight = bench.kernels.pack_head_linear(bench.normal(H, K, N, seed=1))
    x = bench.normal(num_rows, H, K)
    return lambda rows: bench.kernels.head_linear(x[rows], weight)


def experts(bench: Bench, storage: str, num_rows: int) -> Rows:
    """Routed experts with their sum, some of them chosen by nearly every row; padding behind fewer rows."""
    D, F, E = bench.model.hidden_size, bench.moe.expert_hidden_size, min(16, bench.moe.num_experts)
    packed = bench.kernels.pack_experts(
        [random_weight(bench, storage, 2 * F, D, seed=expert) for expert in range(E)],
        [random_weight(bench, storage, D, F, seed=E + expert) for expert in range(E)],
    )
    x = bench.normal(num_rows, D)
    scores = bench.normal(num_rows, E, seed=3, dtype=torch.float32)
    scores[:, 0] += 3
    best = scores.topk(bench.moe.num_experts_per_token, dim=1)

    def compute(rows: Tensor) -> Tensor:
        num_padding = NUM_PADDING if len(rows) < num_rows else 0
        inputs = pad(x[rows], (0, 0, 0, num_padding), value=torch.nan)
        chosen = pad(best.indices[rows], (0, 0, 0, num_padding), value=E)
        choice = Choice(experts=chosen, weights=pad(best.values[rows], (0, 0, 0, num_padding)))
        outputs = bench.kernels.experts(inputs, choice, packed)
        return bench.kernels.combine(outputs, choice, None)[: len(rows)]

    return compute


def latent_attention(bench: Bench, num_heads: int, num_rows: int) -> Rows:
    """Rows of one sequence: a chunk of it together, or each alone as when they were decoded."""
    attention = published.latent(bench.model)
    C, P = attention.latent_width, attention.rotary_width
    shape = AttentionShape(num_queries_per_key=num_heads, num_key_heads=1, key_width=C + P, value_width=C)
    cache = bench.normal(num_tiles(num_rows, BLOCK_SIZE) * BLOCK_SIZE, C + P, seed=2)
    latent, turned = bench.normal(num_rows, num_heads, C), bench.normal(num_rows, num_heads, P, seed=1)
    scale = bench.model.softmax_scale

    def compute(rows: Tensor) -> Tensor:
        plan = plan_of(bench, rows, num_rows, shape)
        return bench.kernels.latent_attention(latent[rows], turned[rows], cache, plan, scale)

    return compute


def grouped_attention(bench: Bench, num_rows: int) -> Rows:
    """The same with eight query heads to a key."""
    G, P = 2, published.latent(bench.model).plain_width
    shape = AttentionShape(num_queries_per_key=8, num_key_heads=G, key_width=P, value_width=P)
    cache = bench.normal(num_tiles(num_rows, BLOCK_SIZE) * BLOCK_SIZE, 2 * G * P, seed=2)
    query = bench.normal(num_rows, 8 * G, P)

    def compute(rows: Tensor) -> Tensor:
        plan = plan_of(bench, rows, num_rows, shape)
        return bench.kernels.grouped_attention(query[rows], cache, plan, P**-0.5)

    return compute


def plan_of(bench: Bench, rows: Tensor, num_rows: int, shape: AttentionShape) -> Packed:
    """All rows of a sequence as one span, which a program walks; fewer as a span each, in pieces."""
    num_blocks = num_tiles(num_rows, BLOCK_SIZE)
    block_ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    spans = [Span(first_row=0, num_rows=num_rows, num_context=num_rows, block_ids=block_ids)]
    if len(rows) < num_rows:
        spans = [
            Span(
                first_row=place, num_rows=1, num_context=row + 1, block_ids=block_ids[: row // BLOCK_SIZE + 1]
            )
            for place, row in enumerate(rows.tolist())
        ]
    return to_device(bench.kernels.plan_attention(spans, rows, BLOCK_SIZE, shape), bench.device)


def sampled(bench: Bench) -> Rows:
    """Tokens with every filter on."""
    scores = 4 * bench.normal(NUM_SAMPLED, bench.model.vocab_size, seed=3, dtype=torch.float32)
    table = sampling_rows(bench, NUM_SAMPLED, 0.9)

    def compute(rows: Tensor) -> Tensor:
        place = rows.to(bench.device)
        some = SamplingRows(
            parameters=table.parameters[place],
            drafts=torch.full_like(place, -1),
            firsts=torch.arange(len(rows) + 1, device=bench.device),
            any_top_k=False,
            any_top_p=True,
        )
        return bench.kernels.sample_and_verify(scores[place], scores[place], some).tokens[:, None]

    return compute
