"""The routed experts of one layer in int4, all of them: what few tokens and many take."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.card import copy_rate
from benchmarks.gpu.finding import Finding
from benchmarks.gpu.stopwatch import seconds
from benchmarks.gpu.weights import int4_weight
from outrider.kernels.interface import Choice, Packed
from outrider.kernels.weights import Int4Weight, StoredWeight, to_plain

PART = "experts"
NUM_INPUTS = 8
LEAST_OF_COPY = 0.65
MOST_OF_BYTES = 1.15
# Beyond it the plain weights of all experts that are woken would not fit beside the packed ones.
MAX_PLAIN_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's experts, as stored and as packed."""

    gate_up: Sequence[Int4Weight]
    down: Sequence[Int4Weight]
    packed: Packed

    @classmethod
    def random(cls, bench: Bench) -> "Layer":
        """Draws the weights."""
        D, F, E = bench.model.hidden_size, bench.moe.expert_hidden_size, bench.moe.num_experts
        gate_up = [int4_weight(bench, 2 * F, D, seed=expert) for expert in range(E)]
        down = [int4_weight(bench, D, F, seed=E + expert) for expert in range(E)]
        return cls(gate_up=gate_up, down=down, packed=bench.kernels.pack_experts(gate_up, down))

    @property
    def bytes_per_expert(self) -> int:
        """What a token that wakes an expert must read."""
        return sum(
            t.nbytes for weight in (self.gate_up[0], self.down[0]) for t in (weight.packed, weight.scales)
        )


@dataclass(frozen=True, kw_only=True)
class Input:
    """Rows and their experts."""

    x: Tensor
    choice: Choice

    @classmethod
    def random(cls, bench: Bench, num_tokens: int, seed: int) -> "Input":
        """Draws rows that choose their experts independently and evenly."""
        scores = bench.normal(num_tokens, bench.moe.num_experts, seed=seed, dtype=torch.float32)
        best = scores.topk(bench.moe.num_experts_per_token, dim=1)
        choice = Choice(experts=best.indices, weights=best.values.softmax(1))
        return cls(x=bench.normal(num_tokens, bench.model.hidden_size, seed=seed), choice=choice)

    @property
    def num_distinct(self) -> int:
        """How many experts are woken."""
        return len(self.choice.experts.unique())


def measure(bench: Bench) -> Iterator[Finding]:
    """Yields the time of a layer's experts by number of tokens, and what others take for the same."""
    rate, layer = copy_rate(bench), Layer.random(bench)
    took: dict[int, tuple[float, float]] = {}  # seconds and bytes by number of tokens
    for num_tokens in bench.sizes((1, 4, 5, 8, 32, 128), (1, 5)):
        num_inputs = 1 if bench.is_tiny else NUM_INPUTS
        inputs = [Input.random(bench, num_tokens, seed) for seed in range(num_inputs)]
        time = seconds([partial(run, bench, layer, item) for item in inputs], bench.device)
        num_bytes = layer.bytes_per_expert * sum(item.num_distinct for item in inputs) / num_inputs
        took[num_tokens] = time, num_bytes
        yield _finding(num_tokens, "time", 1e6 * time, "us")
        part_of_copy = num_bytes / time / rate
        name = f"{num_tokens} tokens: part of the copy's rate"
        if num_tokens <= 8:
            yield Finding.at_least(PART, name, part_of_copy, "", LEAST_OF_COPY)
        else:
            yield Finding(part=PART, name=name, value=part_of_copy, unit="")
        yield from _others(bench, layer, inputs)
    (one, bytes_of_one), (five, bytes_of_five) = took[1], took[5]
    ratio = five / one / (bytes_of_five / bytes_of_one)
    yield Finding.at_most(PART, "5 tokens by 1: time by bytes", ratio, "", MOST_OF_BYTES)


def run(bench: Bench, layer: Layer, item: Input) -> Tensor:
    """Computes the layer's routed experts: [T, D] -> [T, D]."""
    outputs = bench.kernels.experts(item.x, item.choice, layer.packed)
    return bench.kernels.combine(outputs, item.choice, None)


def plain(item: Input, gate_up: Mapping[int, StoredWeight], down: Mapping[int, StoredWeight]) -> Tensor:
    """Computes the same in torch, expert by expert, from weights as they are given."""
    total = torch.zeros_like(item.x, dtype=torch.float32)
    for expert in item.choice.experts.unique().tolist():
        rows, places = (item.choice.experts == expert).nonzero(as_tuple=True)
        gate, up = linear(item.x[rows], to_plain(gate_up[expert])).chunk(2, dim=1)
        output = linear(silu(gate) * up, to_plain(down[expert]))
        total.index_add_(0, rows, output.float() * item.choice.weights[rows, places, None])
    return total.to(item.x.dtype)


def _others(bench: Bench, layer: Layer, inputs: Sequence[Input]) -> Iterator[Finding]:
    first, num_tokens = inputs[0], len(inputs[0].x)
    gate_up = dict(enumerate(layer.gate_up))
    down = dict(enumerate(layer.down))
    time = seconds([partial(plain, first, gate_up, down)], bench.device, is_captured=False)
    yield _finding(num_tokens, "torch, dequantised then multiplied", 1e6 * time, "us")
    if num_tokens > MAX_PLAIN_TOKENS:
        return
    woken = first.choice.experts.unique().tolist()
    plain_gate_up = {expert: to_plain(gate_up[expert]) for expert in woken}
    plain_down = {expert: to_plain(down[expert]) for expert in woken}
    time = seconds([partial(plain, first, plain_gate_up, plain_down)], bench.device, is_captured=False)
    yield _finding(num_tokens, "torch, weights stored plain", 1e6 * time, "us")


def _finding(num_tokens: int, name: str, value: float, unit: str) -> Finding:
    return Finding(part=PART, name=f"{num_tokens} tokens: {name}", value=value, unit=unit)
