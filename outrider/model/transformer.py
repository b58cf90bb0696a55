"""The network: layers of attention and feed-forward between an embedding and a head."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels
from outrider.model.attention import Attention, StepContext, load_attention
from outrider.model.batch import ForwardBatch, ForwardResult, StepInputs
from outrider.model.checkpoint import Checkpoint
from outrider.model.config import ModelConfig
from outrider.model.feed_forward import FeedForward, load_feed_forward
from outrider.model.kv_cache import KVCache
from outrider.model.numerics import Numerics, checkpoint_digest, instruction_set
from outrider.model.precision import default_dtype
from outrider.model.reader import Meter, Progress, Reader
from outrider.model.rotary import Rotary
from outrider.model.transfer import to_device

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's norms and its two blocks."""

    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward


class Transformer:
    """A loaded model; `forward` is its only way to compute, whatever the tokens are for."""

    def __init__(self, config: ModelConfig, reader: Reader, kernels: Kernels, numerics_id: str) -> None:
        self.config = config
        self.numerics_id = numerics_id
        self.dtype = reader.dtype
        self.device = reader.device
        self.kernels = kernels
        self._embedding = reader("model.embed_tokens.weight")
        self._layers = [
            load_layer(config, layer, reader.within(f"model.layers.{layer}."), kernels)
            for layer in range(config.num_layers)
        ]
        self._norm = reader("model.norm.weight", torch.float32)
        head = self._embedding if config.tied_embeddings else reader("lm_head.weight")
        self._head = kernels.pack_linear(head)
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
    ) -> "Transformer":
        """Load a Hugging Face directory; raises ModelError, before reading weights where it can.

        Call torch.set_num_threads before: the number of threads is part of the numerics id. Without dtype,
        outrider.model.precision chooses.
        """
        config = ModelConfig.from_directory(directory)
        checkpoint = Checkpoint.open(directory)
        checkpoint.check(config)
        kernels = load_kernels(backend)
        device = torch.device(device)
        dtype = dtype or default_dtype(checkpoint.dtype, device)
        logger.info("%s: %s kernels, computing in %s", directory, kernels.NAME, dtype)
        numerics = Numerics(
            checkpoint=checkpoint_digest(directory / "config.json", checkpoint.files),
            backend=kernels.NAME,
            kernel_version=kernels.VERSION,
            dtype=str(dtype),
            instruction_set=instruction_set(device),
            library=kernels.LIBRARIES,
            num_threads=torch.get_num_threads() if device.type == "cpu" else 0,
            num_ranks=1,
        )
        meter = Meter(total=checkpoint.num_expected_bytes(config), report=progress)
        reader = Reader(checkpoint=checkpoint, dtype=dtype, device=device, meter=meter)
        return cls(config, reader, kernels, numerics.id)

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(self.config, num_blocks, block_size, self.dtype, self.device)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self.config.num_layers * block_size * self.config.attention.kv_width * self.dtype.itemsize

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
        return ForwardResult(
            logits=self.kernels.linear(normed[inputs.logit_rows], self._head).float(),
            num_distinct_experts=self._count_distinct(experts),
            tapped=torch.cat(tapped, dim=1) if tapped else None,
        )

    def _count_distinct(self, experts: list[Tensor]) -> Tensor | None:
        """How many experts are among the choices [T, A] of each layer, on their device: -> [MoE layers]."""
        if self.config.moe is None or not experts:
            return None
        chosen, E = torch.stack(experts), self.config.moe.num_experts
        # Padding chooses E.
        woken = torch.zeros(len(experts), E + 1, dtype=torch.int64, device=chosen.device)
        return woken.scatter_(1, chosen.flatten(1), 1)[:, :E].sum(1)


def load_layer(config: ModelConfig, layer: int, reader: Reader, kernels: Kernels) -> Layer:
    return Layer(
        attention_norm=reader("input_layernorm.weight", torch.float32),
        attention=load_attention(config, reader.within("self_attn."), kernels),
        feed_forward_norm=reader("post_attention_layernorm.weight", torch.float32),
        feed_forward=load_feed_forward(config, layer, reader.within("mlp."), kernels),
    )
