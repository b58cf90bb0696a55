"""`outrider plan`: what a model takes, whole and on each rank of a group, from its config.json alone."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from outrider.cli.connection import read
from outrider.cli.parser import UsageError
from outrider.cli.shape import BANDWIDTHS, Shape, Step
from outrider.cli.shard import EXCHANGE_SECONDS, LINKS, RankStep, Shard
from outrider.model.errors import ModelError

NUM_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def run(arguments: argparse.Namespace) -> None:
    """Prints the plan."""
    try:
        shape = Shape.from_config(json.loads(read(arguments.config)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{arguments.config}: {type(error).__name__}: {error}") from None
    except ModelError as error:
        raise UsageError(f"{arguments.config}: {error}") from None
    device, num_devices = arguments.device, arguments.num_devices
    bandwidth = BANDWIDTHS[device]
    steps = [shape.step(num_tokens, num_devices * bandwidth) for num_tokens in NUM_TOKENS]
    shard = Shard(shape=shape, num_ranks=num_devices, num_redundant_experts=arguments.num_redundant_experts)
    obstacles = list(shard.obstacles())
    on_rank = [] if obstacles else [shard.step(num_tokens, device, bandwidth) for num_tokens in NUM_TOKENS]
    if arguments.json:
        plan = {"kv_bytes_per_token": shape.kv_bytes_per_token, "steps": [asdict(step) for step in steps]}
        print(json.dumps(plan | {"rank": None if obstacles else shard.as_dict(on_rank)}))
        return
    print(f"{shape.kv_bytes_per_token:,} bytes of KV cache per token, the same on every rank")
    for line in [*_whole(steps, device, num_devices), *(obstacles or _of_rank(shard, on_rank, device))]:
        print(line)


def _whole(steps: list[Step], device: str, num_devices: int) -> Iterator[str]:
    yield f"a step on {num_devices} x {device}, bound by memory, without the KV cache, evenly divided:"
    yield f"{'tokens':>8}{'experts':>10}{'GB read':>10}{'ms':>10}"
    for step in steps:
        gigabytes = step.bytes / 1e9
        experts = step.num_distinct_experts
        yield f"{step.num_tokens:>8}{experts:>10.1f}{gigabytes:>10.1f}{step.milliseconds:>10.2f}"


def _of_rank(shard: Shard, steps: list[RankStep], device: str) -> Iterator[str]:
    yield (
        f"each of {shard.num_ranks} ranks holds {shard.weight_bytes / 1e9:.1f} GB of weights,"
        f" {shard.num_slots} routed experts of each layer among them;"
    )
    yield (
        f"the one that wakes the most experts, and what each receives, at {LINKS[device] / 1e9:.0f} GB/s and"
        f" {1e6 * EXCHANGE_SECONDS:.0f} us (assumed) for each exchange:"
    )
    yield f"{'tokens':>8}{'experts':>10}{'GB read':>10}{'ms':>10}{'exchanges':>11}{'MB':>10}{'ms':>10}"
    for step in steps:
        yield (
            f"{step.num_tokens:>8}{step.num_distinct_experts:>10.1f}{step.bytes / 1e9:>10.1f}"
            f"{step.milliseconds:>10.2f}{step.num_exchanges:>11}{step.exchange_bytes / 1e6:>10.1f}"
            f"{step.exchange_milliseconds:>10.2f}"
        )
