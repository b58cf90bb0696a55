"""The shard of a rank: its part of every layer, and which parts of a checkpoint's tensors it reads."""

import re
from dataclasses import dataclass, replace

from torch import Tensor

from outrider.model.checkpoint import Checkpoint
from outrider.model.config import GroupedAttentionConfig, ModelConfig
from outrider.model.placement import Placement
from outrider.model.quantization import FP8_BLOCK, INT4_GROUP, Storage
from outrider.model.ranks import ALONE, Ranks, own_part
from outrider.model.weights import Shape, linear_storages, plain_tensors, stored_parts

# Products whose outputs are heads or hidden units, of which a rank has its own, and those whose inputs are.
# What leads into the latents is not among them: every rank caches them whole.
SPLIT_BY_ROWS = ("q_proj", "q_b_proj", "k_proj", "v_proj", "kv_b_proj", "gate_proj", "up_proj")
SPLIT_BY_COLUMNS = ("o_proj", "down_proj")
ROUTED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Whose part of the network a process holds; by default all of it."""

    ranks: Ranks = ALONE
    placement: Placement | None = None  # of the routed experts, where there are several ranks

    def own_experts(self, moe_layer: int, num_experts: int) -> list[int]:
        """The logical experts in the rank's slots of a layer."""
        if self.placement is None:
            return list(range(num_experts))
        return self.placement.on_rank(self.ranks.rank)[moe_layer].tolist()


WHOLE = Shard()


@dataclass(frozen=True, kw_only=True)
class Part:
    """Neighbouring rows or columns of a tensor; by default all of it."""

    rows: slice | None = None
    columns: slice | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """A view."""
        if self.rows is not None:
            return tensor[self.rows]
        return tensor if self.columns is None else tensor[:, self.columns]

    def share(self, shape: Shape) -> float:
        """How much of a tensor of this shape it is."""
        if self.rows is not None:
            return len(range(shape[0])[self.rows]) / shape[0]
        return 1 if self.columns is None else len(range(shape[1])[self.columns]) / shape[1]


def shard_config(config: ModelConfig, ranks: Ranks) -> ModelConfig:
    """The network with the rank's own attention heads; raises ModelError if they cannot be split."""
    heads = own_part(config.attention.num_heads, ranks, "attention heads")
    attention = replace(config.attention, num_heads=heads.stop - heads.start)
    if isinstance(attention, GroupedAttentionConfig):
        heads = own_part(attention.num_kv_heads, ranks, "key and value heads")
        attention = replace(attention, num_kv_heads=heads.stop - heads.start)
    return replace(config, attention=attention)


def choose_placement(config: ModelConfig, ranks: Ranks, placement: Placement | None) -> Placement | None:
    """What is placed, if there is anything to place: experts, on several ranks; unset: in order."""
    if config.moe is None or ranks.num_ranks == 1:
        return None
    return placement or balanced_placement(config, ranks.num_ranks)


def balanced_placement(config: ModelConfig, num_ranks: int, num_redundant: int = 0) -> Placement | None:
    """Placement.balanced for a network; None for one without experts. Raises ModelError as that does."""
    if config.moe is None:
        return None
    return Placement.balanced(
        num_layers=config.num_layers - config.num_dense_layers,
        num_experts=config.moe.num_experts,
        num_redundant=num_redundant,
        num_ranks=num_ranks,
    )


def num_expert_bytes(checkpoint: Checkpoint, placement: Placement) -> int:
    """Bytes of one routed expert as it is stored, on average."""
    total = sum(tensor.num_bytes for name, tensor in checkpoint.tensors.items() if ROUTED.match(name))
    return max(total // (len(placement.experts) * placement.num_experts), 1)


def parts_to_read(config: ModelConfig, shard: Shard) -> dict[str, Part]:
    """Of each tensor that the rank reads of a whole network's, its part.

    Raises ModelError, naming it, for a weight that cannot be split as it is stored.
    """
    storages, held = linear_storages(config), _held_experts(config, shard)
    parts: dict[str, Part] = {}
    for name, shape in plain_tensors(config):
        routed = ROUTED.match(name)
        if held is not None and routed and (int(routed[1]), int(routed[2])) not in held:
            continue
        linear = name.removesuffix(".weight")
        storage = storages.get(linear, Storage.PLAIN)
        part = _part_of(linear, shape, storage, shard.ranks)
        if storage == Storage.PLAIN:
            parts[name] = part
        else:
            parts |= {stored: _scaled(part, stored) for stored in stored_parts(linear, shape, storage)}
    return parts


def num_bytes(parts: dict[str, Part], checkpoint: Checkpoint) -> int:
    """Bytes of these parts as they are stored."""
    stored = checkpoint.tensors
    return sum(round(stored[name].num_bytes * part.share(stored[name].shape)) for name, part in parts.items())


def vocabulary_share(vocab_size: int, ranks: Ranks) -> int:
    """Tokens whose logits a rank computes; those behind the vocabulary's end are padding."""
    return -(-vocab_size // ranks.num_ranks)


def vocabulary_part(vocab_size: int, ranks: Ranks) -> slice:
    """The rank's rows of the output head, without padding."""
    share = vocabulary_share(vocab_size, ranks)
    return slice(min(ranks.rank * share, vocab_size), min((ranks.rank + 1) * share, vocab_size))


def _held_experts(config: ModelConfig, shard: Shard) -> set[tuple[int, int]] | None:
    """(layer, expert) of what the rank holds; None: all."""
    if shard.placement is None:
        return None
    rows = shard.placement.on_rank(shard.ranks.rank).tolist()
    return {(config.num_dense_layers + i, expert) for i, row in enumerate(rows) for expert in row}


def _part_of(linear: str, shape: Shape, storage: Storage, ranks: Ranks) -> Part:
    """The rank's part of a weight [N, K]."""
    if ranks.num_ranks == 1 or ROUTED.match(linear):
        return Part()
    if linear == "lm_head":
        return Part(rows=vocabulary_part(shape[0], ranks))
    kind = linear.rpartition(".")[2]
    if kind in SPLIT_BY_ROWS:
        multiple = FP8_BLOCK if storage == Storage.FP8 else 1
        return Part(rows=own_part(shape[0], ranks, f"outputs of {linear}", multiple))
    if kind in SPLIT_BY_COLUMNS:
        multiple = {Storage.PLAIN: 1, Storage.INT4: INT4_GROUP, Storage.FP8: FP8_BLOCK}[storage]
        return Part(columns=own_part(shape[1], ranks, f"inputs of {linear}", multiple))
    return Part()


def _scaled(part: Part, stored: str) -> Part:
    """The part of a tensor that a quantized weight is stored as."""
    kind = stored.rpartition(".")[2]
    if kind == "weight_shape":
        return Part()
    num_rows, num_columns = {
        "weight": (1, 1),
        "weight_packed": (1, 8),
        "weight_scale": (1, INT4_GROUP),
        "weight_scale_inv": (FP8_BLOCK, FP8_BLOCK),
    }[kind]
    return Part(rows=_divided(part.rows, num_rows), columns=_divided(part.columns, num_columns))


def _divided(cut: slice | None, size: int) -> slice | None:
    if cut is None:
        return None
    return slice(cut.start // size, cut.stop // size)
