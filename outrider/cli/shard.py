"""What one rank of a group holds and reads of a model, and what the ranks exchange."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, comb
from typing import Any

from outrider.cli.shape import BF16, Shape

# Bytes per second that a device receives from the others of its machine, by its data sheet: NVLink, and
# Infinity Fabric of the MI300X, in one direction.
LINKS = {"A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "MI300X": 448e9}
EXCHANGE_SECONDS = 10e-6
"""What a collective of a few bytes takes between eight devices of one machine: assumed, not measured."""
FP32 = 4.0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective that every rank takes part in: each gives `bytes` and receives those of the others."""

    what: str
    num_calls: int  # of a step
    bytes: int  # of one call, from one rank


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """A step on the rank that wakes the most experts, and its exchanges without what they can hide behind."""

    num_tokens: int
    num_distinct_experts: float
    bytes: int
    milliseconds: float
    num_exchanges: int
    exchange_bytes: int  # received by each rank
    exchange_milliseconds: float


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of a model that one of `num_ranks` equal ranks holds.

    Split are heads, feed-forward blocks, the output head and the routed experts. Whole on every rank are the
    embedding, the gate, the products into the latents and the latent cache.
    """

    shape: Shape
    num_ranks: int
    num_redundant_experts: int = 0  # of a layer, over all ranks

    @property
    def num_slots(self) -> int:
        """Experts of a layer on a rank, copies included."""
        return (self.shape.num_experts + self.num_redundant_experts) // self.num_ranks

    def obstacles(self) -> Iterator[str]:
        """Yields what cannot be dealt out to the ranks in equal parts."""
        multiple = self.shape.linear_multiple
        num_slots = self.shape.num_experts + self.num_redundant_experts
        for size, what, unit in (
            (self.shape.num_heads, "attention heads", 1),
            (self.shape.dense_hidden if self.shape.num_dense_layers else 0, "dense hidden numbers", multiple),
            (self.shape.shared_hidden, "shared hidden numbers", multiple),
            (num_slots, "experts of a layer, copies included,", 1),
        ):
            if size % (self.num_ranks * unit):
                wholes = f" in multiples of {unit}" if unit > 1 else ""
                yield f"{size} {what} cannot be split{wholes} over {self.num_ranks} ranks"

    @property
    def fixed_bytes(self) -> float:
        """What every step reads of the rank's weights: all but the routed experts and the embedding."""
        shape, num_ranks = self.shape, self.num_ranks
        linear = shape.num_layers * (shape.inward + (shape.attention - shape.inward) / num_ranks)
        linear += (shape.num_dense_layers * shape.dense + shape.num_moe_layers * shape.shared) / num_ranks
        plain = shape.num_layers * shape.absorbed / num_ranks + shape.hidden * ceil(
            shape.vocabulary / num_ranks
        )
        # The gate multiplies in full fp32.
        return linear * shape.linear_bytes + plain * BF16 + shape.num_moe_layers * shape.gate * FP32

    @property
    def weight_bytes(self) -> float:
        """The rank's weights, norms left out."""
        shape = self.shape
        routed = shape.num_moe_layers * self.num_slots * shape.bytes_per_expert
        return self.fixed_bytes + routed + shape.head * BF16

    def num_distinct_experts(self, num_tokens: int) -> float:
        """Returns how many experts of a layer the rank that wakes the most is expected to wake.

        Each token picks for itself, and ranks are taken to be independent: the most on any is at most k with
        P(one rank wakes at most k)^R.
        """
        woken, slots = self.shape.part_woken(num_tokens), self.num_slots
        below, most = 0.0, 0.0
        for k in range(slots):
            below += comb(slots, k) * woken**k * (1 - woken) ** (slots - k)
            most += 1 - min(below, 1.0) ** self.num_ranks
        return most

    def exchanges(self, num_tokens: int) -> Iterator[Exchange]:
        """Yields the collectives of a step, all of whose rows want logits."""
        shape = self.shape
        row = int(shape.hidden * BF16)
        # Outputs of routed experts are brought together unsummed, the shared block's part beside them.
        rows_per_token = shape.num_experts_per_token + (1 if shape.shared_hidden else 0)
        yield Exchange(what="attention", num_calls=shape.num_layers, bytes=num_tokens * row)
        yield Exchange(what="dense", num_calls=shape.num_dense_layers, bytes=num_tokens * row)
        yield Exchange(
            what="experts", num_calls=shape.num_moe_layers, bytes=num_tokens * rows_per_token * row
        )
        share = ceil(shape.vocabulary / self.num_ranks)
        yield Exchange(what="logits", num_calls=1, bytes=int(num_tokens * share * BF16))

    def step(self, num_tokens: int, device: str, bandwidth: float) -> RankStep:
        """Returns a step on devices of a kind, each of which reads `bandwidth` bytes per second."""
        shape, num_distinct = self.shape, self.num_distinct_experts(num_tokens)
        num_bytes = self.fixed_bytes + shape.num_moe_layers * num_distinct * shape.bytes_per_expert
        exchanges = [item for item in self.exchanges(num_tokens) if self.num_ranks > 1]
        num_calls = sum(item.num_calls for item in exchanges)
        received = sum(item.num_calls * item.bytes for item in exchanges) * (self.num_ranks - 1)
        return RankStep(
            num_tokens=num_tokens,
            num_distinct_experts=round(num_distinct, 1),
            bytes=round(num_bytes),
            milliseconds=round(1e3 * num_bytes / bandwidth, 4),
            num_exchanges=num_calls,
            exchange_bytes=received,
            exchange_milliseconds=round(1e3 * (num_calls * EXCHANGE_SECONDS + received / LINKS[device]), 4),
        )

    def as_dict(self, steps: list[RankStep]) -> dict[str, Any]:
        """Returns what a plan says of each rank."""
        return {
            "num_ranks": self.num_ranks,
            "num_experts_per_layer": self.num_slots,
            "weight_bytes": round(self.weight_bytes),
            # Latents belong to no head: each rank has them all.
            "kv_bytes_per_token": self.shape.kv_bytes_per_token,
            "steps": [asdict(step) for step in steps],
        }
