"""The network: layers of attention and feed-forward between an embedding and a head."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels
from outrider.model.agreement import agree
from outrider.model.attention import Attention, StepContext, load_attention
from outrider.model.batch import ForwardBatch, ForwardResult, StepInputs
from outrider.model.checkpoint import Checkpoint
from outrider.model.config import ModelConfig
from outrider.model.feed_forward import FeedForward, MoeFeedForward, StoredExpert, load_feed_forward
from outrider.model.kv_cache import KVCache
from outrider.model.numerics import Numerics, checkpoint_digest, instruction_set
from outrider.model.output_head import OutputHead
from outrider.model.placement import Move, Placement
from outrider.model.precision import default_dtype
from outrider.model.ranks import ALONE, Ranks
from outrider.model.reader import Meter, Progress, Reader
from outrider.model.rotary import Rotary
from outrider.model.shard import (
    WHOLE,
    Shard,
    choose_placement,
    num_bytes,
    num_expert_bytes,
    parts_to_read,
    shard_config,
    vocabulary_part,
)
from outrider.model.transfer import to_device

logger = logging.getLogger(__name__)

MAX_NUM_LOADERS = {"cpu": 8, "cuda": 2}
"""Layers that are read and packed at a time: more need more memory for what is read and not yet packed."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's norms and its two blocks."""

    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward


class Transformer:
    """A loaded model or a rank's shard; `forward` is its only way to compute, whatever the tokens are for.

    The ranks of a group compute the same steps in lockstep, and each has the same result.
    """

    def __init__(
        self,
        config: ModelConfig,
        reader: Reader,
        kernels: Kernels,
        numerics_id: str,
        shard: Shard = WHOLE,
    ) -> None:
        """`config` has the rank's own attention heads: shard_config."""
        self.config = config
        self.numerics_id = numerics_id
        self.ranks = shard.ranks
        self.placement = shard.placement
        self.dtype = reader.dtype
        self.device = reader.device
        self.kernels = kernels
        self._checkpoint = reader.checkpoint
        self._embedding = reader("model.embed_tokens.weight")
        self._layers = load_layers(config, reader, kernels, shard)
        self._norm = reader("model.norm.weight", torch.float32)
        head = (
            self._embedding[vocabulary_part(config.vocab_size, self.ranks)]
            if config.tied_embeddings
            else reader("lm_head.weight")
        )
        self._head = OutputHead(head, config.vocab_size, kernels, self.ranks)
        self._rotary = Rotary(config.rotary, self.device)

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        directory: Path,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        backend: str = "torch",
        progress: Progress | None = None,
        ranks: Ranks = ALONE,
        placement: Placement | None = None,
    ) -> "Transformer":
        """Load a Hugging Face directory; raises ModelError, before reading weights where it can.

        Call torch.set_num_threads before: the number of threads is part of the numerics id. Without dtype,
        outrider.model.precision chooses. All ranks of a group load at the same time, each its own shard, with
        the same placement; without one it is Placement.balanced.
        """
        config = ModelConfig.from_directory(directory)
        checkpoint = Checkpoint.open(directory)
        checkpoint.check(config)
        kernels = load_kernels(backend)
        device = torch.device(device)
        dtype = dtype or default_dtype(checkpoint.dtype, device)
        logger.info("%s: %s kernels, computing in %s", directory, kernels.NAME, dtype)
        own_config = shard_config(config, ranks)
        shard = Shard(ranks=ranks, placement=choose_placement(config, ranks, placement))
        parts = parts_to_read(config, shard)
        numerics = Numerics(
            # One rank reads it all.
            checkpoint=checkpoint_digest(directory / "config.json", checkpoint.files)
            if ranks.rank == 0
            else "",
            backend=kernels.NAME,
            kernel_version=kernels.VERSION,
            dtype=str(dtype),
            instruction_set=instruction_set(device),
            library=kernels.LIBRARIES,
            num_threads=torch.get_num_threads() if device.type == "cpu" else 0,
            num_ranks=ranks.num_ranks,
        )
        numerics = agree(numerics, checkpoint, shard.placement, ranks, device)
        meter = Meter(total=num_bytes(parts, checkpoint), report=progress)
        reader = Reader(checkpoint=checkpoint, dtype=dtype, device=device, meter=meter, parts=parts)
        return cls(own_config, reader, kernels, numerics.id, shard)

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(self.config, num_blocks, block_size, self.dtype, self.device)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self.config.num_layers * block_size * self.config.attention.kv_width * self.dtype.itemsize

    @property
    def num_expert_bytes(self) -> int:
        """Bytes that a move reads; only where experts are placed."""
        assert self.placement is not None
        return num_expert_bytes(self._checkpoint, self.placement)

    def owns(self, move: Move) -> bool:
        """Whether the move is into a slot of this rank, which then has to read the expert."""
        assert self.placement is not None
        return move.slot // self.placement.num_slots_per_rank == self.ranks.rank

    @torch.inference_mode()
    def read_expert(self, move: Move) -> StoredExpert:
        """Read what a move brings, ahead of it: in any thread, and while steps run."""
        return self._moe_layer(move.layer).read_expert(move.expert)

    @torch.inference_mode()
    def place(self, moves: Sequence[Move], weights: Mapping[Move, StoredExpert]) -> None:
        """Let moves take effect, in place, between the same two steps on every rank; no token changes.

        `weights` are those read for the moves that this rank owns. Graphs that were captured go on.
        """
        assert self.placement is not None
        placement = self.placement.after(moves)
        for layer in {move.layer for move in moves}:
            read = {move.slot: weights[move] for move in moves if move.layer == layer and self.owns(move)}
            self._moe_layer(layer).place(placement.experts[layer], read)
        self.placement = placement

    def _moe_layer(self, moe_layer: int) -> MoeFeedForward:
        feed_forward = self._layers[self.config.num_dense_layers + moe_layer].feed_forward
        assert isinstance(feed_forward, MoeFeedForward)
        return feed_forward

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> ForwardResult:
        """Compute the batch's tokens, write them into the cache, and return what is wanted of their rows."""
        return self.compute(to_device(self.lay_out(batch, kv_cache.block_size), self.device), kv_cache)

    def lay_out(self, batch: ForwardBatch, block_size: int) -> StepInputs:
        """Make of a batch what `compute` takes, on the host."""
        shape = self.config.attention.shape
        return StepInputs(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=batch.slots,
            plan=self.kernels.plan_attention(batch.spans, batch.positions, block_size, shape),
            logit_rows=batch.logit_rows,
            tap=batch.tap,
        )

    @torch.inference_mode()
    def compute(self, inputs: StepInputs, kv_cache: KVCache) -> ForwardResult:
        """Compute inputs that lie on the device; with kernels that are CAPTURABLE it never waits for it."""
        angles = self._rotary.angles(inputs.positions)
        context = StepContext(slots=inputs.slots, angles=angles, plan=inputs.plan)
        epsilon, tap = self.config.norm_epsilon, inputs.tap
        x = self._embedding[inputs.token_ids]
        normed = self.kernels.rms_norm(x, self._layers[0].attention_norm, epsilon)
        norms_after = [*(layer.attention_norm for layer in self._layers[1:]), self._norm]
        experts: list[Tensor] = []
        tapped: list[Tensor] = []
        for number, layer in enumerate(self._layers):
            if tap and number in tap.layers:
                tapped.append(x[tap.rows])
            attended = layer.attention(normed, kv_cache.layers[number], context)
            x, normed = self.kernels.add_rms_norm(x, attended, layer.feed_forward_norm, epsilon)
            result = layer.feed_forward(normed, inputs.padding)
            x, normed = self.kernels.add_rms_norm(x, result.output, norms_after[number], epsilon)
            if result.experts is not None:
                experts.append(result.experts)
        if tap and len(self._layers) in tap.layers:
            tapped.append(x[tap.rows])
        chosen = torch.stack(experts) if experts else None
        return ForwardResult(
            logits=self._head(normed[inputs.logit_rows]),
            num_distinct_experts=self._count_distinct(chosen),
            experts=chosen,
            tapped=torch.cat(tapped, dim=1) if tapped else None,
        )

    def _count_distinct(self, chosen: Tensor | None) -> Tensor | None:
        """How many experts are among the choices [MoE layers, T, A], on their device: -> [MoE layers]."""
        if self.config.moe is None or chosen is None:
            return None
        E = self.config.moe.num_experts
        # Padding chooses E.
        woken = torch.zeros(len(chosen), E + 1, dtype=torch.int64, device=chosen.device)
        return woken.scatter_(1, chosen.flatten(1), 1)[:, :E].sum(1)


def load_layers(config: ModelConfig, reader: Reader, kernels: Kernels, shard: Shard) -> list[Layer]:
    """All layers, several at a time."""
    num_threads, device = torch.get_num_threads(), reader.device
    # A device without a number is this thread's.
    current = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device

    def prepare() -> None:
        # Both are a thread's own, and what is tried here of products must hold where steps are computed.
        torch.set_num_threads(num_threads)
        if device.type == "cuda":
            torch.cuda.set_device(current)

    load = partial(load_layer, config, reader, kernels, shard)
    num_loaders = min(MAX_NUM_LOADERS.get(device.type, 1), num_threads, config.num_layers)
    with ThreadPoolExecutor(num_loaders, "load", prepare) as pool:
        return list(pool.map(load, range(config.num_layers)))


@torch.inference_mode()
def load_layer(config: ModelConfig, whole: Reader, kernels: Kernels, shard: Shard, layer: int) -> Layer:
    reader = whole.within(f"model.layers.{layer}.")
    return Layer(
        attention_norm=reader("input_layernorm.weight", torch.float32),
        attention=load_attention(config, reader.within("self_attn."), kernels, shard.ranks),
        feed_forward_norm=reader("post_attention_layernorm.weight", torch.float32),
        feed_forward=load_feed_forward(config, layer, reader.within("mlp."), kernels, shard),
    )
