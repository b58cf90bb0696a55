"""What a step must read and multiply, on paper: no GPU is asked.

    python -m benchmarks.floor [--model kimi-k2.5] [--rows 1 8]

Rows are independent: each has CONTEXT tokens in the cache and picks experts for itself. A kernel's floor is
the longer of reading its bytes and multiplying its numbers at the rates of the data sheet. Devices of a group
share weights and heads; each reads the whole latent cache.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from benchmarks import published
from benchmarks.sections import markdown
from outrider.cli.shape import BANDWIDTHS, BF16, Shape
from outrider.model.config import ModelConfig
from outrider.model.weights import layer_tensors

NUM_ROWS = (1, 4, 8, 32, 128)
CONTEXT = 4096
FP32 = 4.0
# Multiplications and additions of dense matrices per second, by the data sheets of H200 and DGX B200, which
# print them with sparsity, twice as high.
RATES = {"H200": {"bf16": 0.989e15, "fp8": 1.979e15}, "B200": {"bf16": 2.25e15, "fp8": 4.5e15}}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one kind of launch does in a step, all layers together."""

    kernel: str
    weight_bytes: float
    other_bytes: float  # activations, shared by the devices like weights
    cache_bytes: float  # read by every device
    operations: float
    rate: str = "bf16"  # the precision it multiplies in

    @property
    def num_bytes(self) -> float:
        """All that is read and written."""
        return self.weight_bytes + self.other_bytes + self.cache_bytes

    def seconds(self, device: str, num_devices: int) -> float:
        """Returns the floor on one of so many devices."""
        shared = (self.weight_bytes + self.other_bytes) / num_devices
        reading = (shared + self.cache_bytes) / BANDWIDTHS[device]
        return max(reading, self.operations / num_devices / RATES[device][self.rate])


# What each dense product multiplies with, by the end of its tensors' names.
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "linear, inward": ("kv_a_proj_with_mqa.weight", "q_a_proj.weight"),
    "linear, queries": ("q_b_proj.weight",),
    "head_linear": ("kv_b_proj.weight",),
    "linear, outward": ("o_proj.weight",),
    "linear, gate": ("mlp.gate.weight",),
    "linear, shared and dense": tuple(
        f"{part}.{name}_proj.weight" for part in ("mlp", "shared_experts") for name in ("gate", "up", "down")
    ),
}

PLAIN = ("head_linear", "linear, gate")
"""Products in bf16, whatever the weights are stored as."""


def step_work(model: str, num_rows: int) -> list[Work]:
    """Returns the work of a step by kernel."""
    config, shape = published.read_config(model), Shape.from_config(published.raw_config(model))
    return [
        *dense_work(config, shape, num_rows),
        *expert_work(config, shape, num_rows),
        attention_work(config, num_rows),
        *row_work(config, num_rows),
    ]


def dense_work(config: ModelConfig, shape: Shape, num_rows: int) -> Iterator[Work]:
    """Yields the products that every row takes part in."""
    tensors = [tensor for layer in range(config.num_layers) for tensor in layer_tensors(config, layer)]
    for kernel, ends in PRODUCTS.items():
        found = [dims for name, dims in tensors if name.endswith(ends) and ".experts." not in name]
        bytes_per_weight = BF16 if kernel in PLAIN else shape.linear_bytes
        yield product(kernel, found, num_rows, bytes_per_weight)
    yield product("linear, head", [(config.vocab_size, config.hidden_size)], num_rows, BF16)


def product(kernel: str, shapes: list[tuple[int, ...]], num_rows: int, bytes_per_weight: float) -> Work:
    """Returns products [T, K] x [N, K] for all of `shapes`."""
    num_weights = sum(prod(dims) for dims in shapes)
    return Work(
        kernel=kernel,
        weight_bytes=num_weights * bytes_per_weight,
        other_bytes=num_rows * sum(sum(dims) for dims in shapes) * BF16,
        cache_bytes=0,
        operations=2 * num_rows * num_weights,
        rate="fp8" if bytes_per_weight < BF16 else "bf16",
    )


def expert_work(config: ModelConfig, shape: Shape, num_rows: int) -> Iterator[Work]:
    """Yields the two products of the routed experts that independent rows wake."""
    moe = published.experts(config)
    num_layers = shape.num_moe_layers
    num_distinct = shape.step(num_rows, 1.0).num_distinct_experts
    pairs = num_rows * moe.num_experts_per_token
    width = config.hidden_size + moe.expert_hidden_size
    for kernel, share in (("moe_gate_up", 2 / 3), ("moe_down", 1 / 3)):
        yield Work(
            kernel=kernel,
            weight_bytes=num_layers * num_distinct * shape.expert * share * shape.expert_bytes,
            other_bytes=num_layers * pairs * width * BF16,
            cache_bytes=0,
            operations=2 * num_layers * pairs * shape.expert * share,
            # int4 is multiplied in bf16.
            rate="fp8" if 1 <= shape.expert_bytes < BF16 else "bf16",
        )


def attention_work(config: ModelConfig, num_rows: int) -> Work:
    """Returns absorbed attention: every head's scores and values over the latents of a row's context."""
    attention = published.latent(config)
    width, heads = attention.kv_width + attention.latent_width, attention.num_heads
    return Work(
        kernel="mla",
        weight_bytes=0,
        other_bytes=config.num_layers * num_rows * heads * width * BF16,
        cache_bytes=config.num_layers * num_rows * CONTEXT * attention.kv_width * BF16,
        operations=2 * config.num_layers * num_rows * CONTEXT * heads * width,
    )


def row_work(config: ModelConfig, num_rows: int) -> Iterator[Work]:
    """Yields what reads and writes rows and multiplies next to nothing."""
    attention, moe = published.latent(config), published.experts(config)
    num_layers, hidden = config.num_layers, config.hidden_size
    num_moe_layers = num_layers - config.num_dense_layers
    query = attention.num_heads * attention.rotary_width
    per_row = {
        "rms_norm": num_layers * (2 * 4 * hidden + 2 * (attention.query_rank or 0)) * BF16,
        "norm_rotary": num_layers * 2 * (attention.kv_width + query) * BF16,
        "gate": num_moe_layers * (moe.num_experts + 3 * moe.num_experts_per_token) * FP32,
        "combine": num_moe_layers * (moe.num_experts_per_token + 2) * hidden * BF16,
        "sample_verify": config.vocab_size * FP32,
    }
    for kernel, num_bytes in per_row.items():
        yield Work(
            kernel=kernel, weight_bytes=0, other_bytes=num_rows * num_bytes, cache_bytes=0, operations=0
        )


def kernel_rows(model: str, num_rows: int) -> Iterator[dict[str, str]]:
    """Yields the table of one step, a row for each kernel."""
    works = step_work(model, num_rows)
    for work in sorted(works, key=lambda work: -work.seconds("H200", 1)):
        yield {
            "kernel": work.kernel,
            "MB": f"{work.num_bytes / 1e6:,.1f}",
            "GFLOP": f"{work.operations / 1e9:,.1f}",
            **{f"us on {device}": f"{1e6 * work.seconds(device, 1):,.0f}" for device in RATES},
            **{f"us on 8 x {device}": f"{1e6 * work.seconds(device, 8):,.1f}" for device in RATES},
        }


def step_rows(model: str) -> Iterator[dict[str, str]]:
    """Yields the table of whole steps, a row for each number of rows."""
    shape = Shape.from_config(published.raw_config(model))
    for num_rows in NUM_ROWS:
        works = step_work(model, num_rows)
        yield {
            "rows": str(num_rows),
            "distinct experts": f"{shape.step(num_rows, 1.0).num_distinct_experts:.1f}",
            "GB": f"{sum(work.num_bytes for work in works) / 1e9:,.1f}",
            "TFLOP": f"{sum(work.operations for work in works) / 1e12:,.2f}",
            **{
                f"ms on {count} x {device}": f"{1e3 * sum(w.seconds(device, count) for w in works):,.2f}"
                for device in RATES
                for count in (1, 8)
            },
        }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=published.MODELS, default="kimi-k2.5")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    print(markdown(list(step_rows(arguments.model))))
    for num_rows in arguments.rows:
        print(f"\n{num_rows} rows by kernel\n")
        print(markdown(list(kernel_rows(arguments.model, num_rows))))


if __name__ == "__main__":
    main()
