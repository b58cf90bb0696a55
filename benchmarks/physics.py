"""Drives the scheduler's controller with the physics of Kimi K2.5 on eight devices, no device at hand.

    python -m benchmarks.physics [--device B200] [--acceptance 0.7] [--num-tokens 400] [--batch-sizes 1 8 64]

A step takes a floor for launches and collectives, then as long as reading the weights that it wakes (int4
experts, bf16 rest) and the latent cache, or as computing takes, whichever is longer. The controller knows
none of that: it learns from noisy steps, and from drafts whose confidences say more than is true.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.replay import Controlled, Drafted, Fixed, Outcome, Policy, replay
from services.scheduler.controller import Controller, ModelFacts, Offer, Settings, StepShape

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_NUM_DRAFT_TOKENS = 8

# Kimi K2.5, from its published configuration.
NUM_MOE_LAYERS, NUM_LAYERS = 60, 61
NUM_EXPERTS, NUM_EXPERTS_PER_TOKEN = 384, 8
EXPERT_BYTES = 3 * 7168 * 2048 * (0.5 + 2 / 32)  # int4, a bf16 scale for 32
FIXED_BYTES = (
    21.1e9  # all that every token reads, in bf16: attention, shared experts, dense layer, gate, head
)
LATENT_BYTES_PER_TOKEN = NUM_LAYERS * 576 * 2
FLOPS_PER_TOKEN = 2 * 32e9


@dataclass(frozen=True, kw_only=True)
class Device:
    """Eight devices of a kind: data sheet times what kernels reach of it."""

    bandwidth: float  # bytes per second of one
    flops: float  # bf16 of one
    num_devices: int = 8
    reached_bandwidth: float = 0.8
    reached_flops: float = 0.4
    # A layer's launches and its exchanges between ranks: what a token takes beyond reading its weights.
    seconds_per_layer: float = 20e-6


DEVICES = {
    "B200": Device(bandwidth=8e12, flops=2.25e15),
    "H200": Device(bandwidth=4.8e12, flops=0.99e15),
}


@dataclass(slots=True)
class Physics:
    """What a step takes; tokens of one sequence share experts with their neighbours, others hardly do."""

    device: Device
    noise: float = 0.05
    # n neighbouring tokens wake as many experts as n to this power independent ones: a third fewer for four.
    sharing: float = 0.7
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def num_distinct(self, shape: StepShape) -> float:
        """Returns the experts woken per layer."""
        per_sequence = shape.num_rows / shape.num_sequences
        independent = shape.num_sequences * per_sequence**self.sharing
        return NUM_EXPERTS * (1 - (1 - NUM_EXPERTS_PER_TOKEN / NUM_EXPERTS) ** independent)

    def seconds(self, shape: StepShape) -> float:
        """Returns the time without noise."""
        device, distinct = self.device, self.num_distinct(shape)
        bandwidth = device.bandwidth * device.reached_bandwidth
        weights = FIXED_BYTES + NUM_MOE_LAYERS * distinct * EXPERT_BYTES
        # The ranks share the weights, but each reads the whole latent cache.
        reading = weights / (device.num_devices * bandwidth)
        reading += shape.num_context_tokens * LATENT_BYTES_PER_TOKEN / bandwidth
        flops = device.num_devices * device.flops * device.reached_flops
        computing = shape.num_rows * FLOPS_PER_TOKEN / flops
        return NUM_LAYERS * device.seconds_per_layer + max(reading, computing)

    def step(self, shape: StepShape) -> tuple[float, Sequence[int]]:
        """Returns a step as it would be measured: noisy, and now and then held up."""
        seconds = self.seconds(shape) * self.rng.lognormal(0, self.noise)
        if self.rng.random() < 0.002:
            seconds *= 10
        distinct = self.num_distinct(shape) * self.rng.lognormal(0, 0.03, NUM_MOE_LAYERS)
        return seconds, np.minimum(distinct, NUM_EXPERTS).round().astype(int).tolist()


@dataclass(slots=True)
class SyntheticText:
    """A text of which each token is guessed with a chance of its own, and confidences exaggerate it."""

    acceptance: float
    seed: int
    num_output_tokens: int
    num_prompt_tokens: int = 1000

    def drafts(self, position: int) -> Sequence[Drafted]:
        """Returns one draft, the same each time."""
        rng = np.random.default_rng((self.seed, position))
        spread = 6.0
        chance = rng.beta(spread * self.acceptance, spread * (1 - self.acceptance), MAX_NUM_DRAFT_TOKENS)
        chance = np.clip(chance, 0.01, 0.99)
        is_right = rng.random(MAX_NUM_DRAFT_TOKENS) < chance
        num_right = int(np.argmin(is_right)) if not is_right.all() else MAX_NUM_DRAFT_TOKENS
        confidences = 1 / (1 + ((1 - chance) / chance) ** 1.5)
        offer = Offer(source="model", confidences=confidences.tolist(), match_length=0, phase="text")
        return [Drafted(offer, num_right)]


def texts(acceptance: float) -> Iterator[SyntheticText]:
    """Yields texts for ever, the same each time."""
    for seed in count():
        yield SyntheticText(acceptance, seed, num_output_tokens=1000)


def new_controller() -> Controller:
    """Returns a controller that has seen nothing."""
    model = ModelFacts(
        num_experts=NUM_EXPERTS, num_experts_per_token=NUM_EXPERTS_PER_TOKEN, num_moe_layers=NUM_MOE_LAYERS
    )
    return Controller(model, Settings(max_num_draft_tokens=MAX_NUM_DRAFT_TOKENS))


def run(policy: Policy, device: Device, acceptance: float, batch_size: int, num_tokens: int) -> Outcome:
    """Replays texts, so many tokens per stream."""
    costs = Physics(device)
    return replay(texts(acceptance), batch_size, policy, costs, num_tokens=num_tokens * batch_size)


def measure(device: Device, acceptance: float, batch_size: int, num_tokens: int) -> dict[str, float]:
    """Returns the chosen length and the gain at one batch size, learning included."""
    controlled = run(Controlled(new_controller()), device, acceptance, batch_size, num_tokens)
    fixed = {
        length: run(Fixed(length), device, acceptance, batch_size, num_tokens).tokens_per_second
        for length in range(MAX_NUM_DRAFT_TOKENS + 1)
    }
    best = max(fixed, key=fixed.__getitem__)
    return {
        "batch_size": batch_size,
        "draft_length": round(controlled.mean_length, 2),
        "tokens_per_second": round(controlled.tokens_per_second, 1),
        "gain_over_none": round(controlled.tokens_per_second / fixed[0], 3),
        "best_fixed_length": best,
        "gain_over_best_fixed": round(controlled.tokens_per_second / fixed[best], 3),
    }


def markdown(rows: Sequence[dict[str, float]]) -> str:
    """Returns a table of the chosen lengths and gains by batch size."""
    names = ("batch_size", "draft_length", "gain_over_none", "best_fixed_length", "gain_over_best_fixed")
    head = "| " + " | ".join(name.replace("_", " ") for name in names) + " |"
    lines = ["| " + " | ".join(f"{row[name]:g}" for name in names) + " |" for row in rows]
    return "\n".join([head, "|---" * len(names) + "|", *lines])


def main() -> None:
    """Prints one JSON line per batch size, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="B200")
    parser.add_argument("--acceptance", type=float, default=0.7)
    parser.add_argument("--num-tokens", type=int, default=400)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES)
    arguments = parser.parse_args()
    rows = []
    for batch_size in arguments.batch_sizes:
        row = measure(DEVICES[arguments.device], arguments.acceptance, batch_size, arguments.num_tokens)
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(markdown(rows))


if __name__ == "__main__":
    main()
