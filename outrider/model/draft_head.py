"""A draft head in EAGLE-3 form (arXiv 2503.01840): guesses what a model says next from what went on in it.

It has two halves. `FeatureProjection` makes one vector of a token's hidden vectors at a few layers of the
target: the worker computes it. `DraftHead` reads that vector together with the next token; where it has
drafted the tokens itself, its own output takes the vector's place.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels, Packed
from outrider.model.attention import StepContext, load_attention
from outrider.model.batch import ForwardBatch
from outrider.model.checkpoint import DTYPES, SKIPPED, Checkpoint
from outrider.model.draft_head_config import DraftHeadConfig, head_tensors, optional_tensors
from outrider.model.errors import CheckpointError
from outrider.model.feed_forward import DenseFeedForward
from outrider.model.kv_cache import KVCache
from outrider.model.precision import default_dtype
from outrider.model.reader import Meter, Reader
from outrider.model.rotary import Rotary
from outrider.model.transformer import Transformer
from outrider.model.weights import PLAIN_DTYPES, Expected

FEATURE_DTYPE = torch.bfloat16
ID_DTYPES = {"d2t": ("I64",), "t2d": ("BOOL",)}


class FeatureProjection:
    """One vector of the hidden vectors of a token: [Q, layers x target's D] -> [Q, D] bf16."""

    def __init__(
        self, config: DraftHeadConfig, layers: tuple[int, ...], fc: Packed, kernels: Kernels
    ) -> None:
        self.layers = layers
        self.size = config.network.hidden_size
        self._fc = fc
        self._kernels = kernels

    @classmethod
    @torch.inference_mode()
    def load(cls, directory: Path, target: Transformer, *, backend: str = "torch") -> "FeatureProjection":
        """Load a head's first half, to compute as the target does; raises ModelError."""
        config, checkpoint = open_head(directory)
        kernels = load_kernels(backend)
        fc = reader_of(checkpoint, target.dtype, target.device)("fc.weight")
        return cls(config, config.layers_in(target.config), kernels.pack_linear(fc), kernels)

    @torch.inference_mode()
    def __call__(self, tapped: Tensor) -> Tensor:
        return self._kernels.linear(tapped, self._fc).to(FEATURE_DTYPE)


class DraftHead:
    """A loaded head: `forward` reads tokens, `logits` tells what follows them."""

    def __init__(self, config: DraftHeadConfig, reader: Reader, target: Reader, kernels: Kernels) -> None:
        self.config = config
        self.dtype = reader.dtype
        self.device = reader.device
        self._kernels = kernels
        network, layer, own = config.network, reader.within("midlayer."), reader.checkpoint.tensors
        self._embedding = (
            reader("embed_tokens.weight")
            if "embed_tokens.weight" in own
            else read_of_target(target, "model.embed_tokens.weight", config)
        )
        self._token_norm = layer("input_layernorm.weight", torch.float32)
        self._feature_norm = layer("hidden_norm.weight", torch.float32)
        self._attention = load_attention(network, layer.within("self_attn."), kernels)
        self._feed_forward_norm = layer("post_attention_layernorm.weight", torch.float32)
        self._feed_forward = DenseFeedForward(layer.within("mlp."), kernels)
        self._norm = reader("norm.weight", torch.float32)
        self._target_ids = read_target_ids(config, reader.checkpoint).to(self.device)
        head = (
            reader("lm_head.weight")
            if "lm_head.weight" in own
            else read_of_target(target, "lm_head.weight", config).index_select(0, self._target_ids)
        )
        self._head = kernels.pack_linear(head)
        self._rotary = Rotary(network.rotary, self.device)

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        directory: Path,
        target_directory: Path,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        backend: str = "torch",
    ) -> "DraftHead":
        """Load a head, and of its target what it lacks; raises ModelError.

        Without dtype, outrider.model.precision chooses.
        """
        config, checkpoint = open_head(directory)
        device = torch.device(device)
        dtype = dtype or default_dtype(DTYPES[checkpoint.tensors["fc.weight"].dtype], device)
        reader = reader_of(checkpoint, dtype, device)
        target = reader_of(Checkpoint.open(target_directory), dtype, device)
        return cls(config, reader, target, load_kernels(backend))

    def new_kv_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(self.config.network, num_blocks, block_size, self.dtype, self.device)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return block_size * self.config.network.attention.kv_width * self.dtype.itemsize

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, features: Tensor, kv_cache: KVCache) -> Tensor:
        """Compute rows of a feature [T, D] and the token after its own, and write them into the cache.

        Returns of the wanted rows [R, D] what takes the feature's place behind a token drafted next.
        Positions may be counted from any token of a sequence, since attention sees their differences only.
        """
        (cache,) = kv_cache.layers
        feature = self._normalize(features, self._feature_norm)
        token = self._normalize(self._embedding[batch.token_ids], self._token_norm)
        x = feature if self.config.normalizes_residual else features
        context = self._step_context(batch, kv_cache.block_size)
        x = x + self._attention(torch.cat([token, feature], dim=1), cache, context)
        x = x + self._feed_forward.apply(self._normalize(x, self._feed_forward_norm))
        return x[batch.logit_rows]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Of what `forward` returned, in fp32: [R, D] -> [R, V]; minus infinity for tokens it cannot say."""
        logits = self._kernels.linear(self._normalize(hidden, self._norm), self._head).float()
        spread = logits.new_full((len(logits), self.config.network.vocab_size), -torch.inf)
        return spread.index_copy_(1, self._target_ids, logits)

    def _step_context(self, batch: ForwardBatch, block_size: int) -> StepContext:
        shape = self.config.network.attention.shape
        plan = self._kernels.plan_attention(batch.spans, batch.positions, block_size, shape)
        return StepContext(slots=batch.slots, angles=self._rotary.angles(batch.positions), plan=plan)

    def _normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._kernels.rms_norm(x, weight, self.config.network.norm_epsilon)


def open_head(directory: Path) -> tuple[DraftHeadConfig, Checkpoint]:
    """Read config and headers of a head, checked: its tensors are exactly those that the config demands."""
    config, checkpoint = DraftHeadConfig.from_directory(directory), Checkpoint.open(directory)
    optional = optional_tensors(config)
    shapes = head_tensors(config) | {name: optional[name] for name in optional if name in checkpoint.tensors}
    if config.draft_vocab_size < config.network.vocab_size:
        shapes["d2t"] = optional["d2t"]
    expected = {
        name: Expected(shape=shape, dtypes=ID_DTYPES.get(name, PLAIN_DTYPES))
        for name, shape in shapes.items()
    }
    checkpoint.require(expected)
    checkpoint.refuse_others(expected, lambda name: re.match(SKIPPED, name) is not None)
    return config, checkpoint


def reader_of(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Reader:
    return Reader(checkpoint=checkpoint, dtype=dtype, device=device, meter=Meter(total=0, report=None))


def read_of_target(target: Reader, name: str, config: DraftHeadConfig) -> Tensor:
    """The target's embedding or output head; a target that ties them has but the one."""
    tied = name not in target.checkpoint.tensors
    expected = Expected(shape=(config.network.vocab_size, config.network.hidden_size))
    name = "model.embed_tokens.weight" if tied else name
    target.checkpoint.require({name: expected})
    return target(name)


def read_target_ids(config: DraftHeadConfig, checkpoint: Checkpoint) -> Tensor:
    """The target's id of each draft token; `d2t` holds the differences, and `t2d` must agree with it."""
    V = config.network.vocab_size
    ids = torch.arange(config.draft_vocab_size)
    if "d2t" in checkpoint.tensors:
        ids = ids + checkpoint.read("d2t")
    known = torch.zeros(V, dtype=torch.bool)
    if bool((ids < 0).any()) or bool((ids >= V).any()) or len(ids.unique()) < len(ids):
        raise CheckpointError(f"{checkpoint.directory}: d2t does not name different tokens below {V}")
    known[ids] = True
    if "t2d" in checkpoint.tensors and not torch.equal(checkpoint.read("t2d"), known):
        raise CheckpointError(f"{checkpoint.directory}: t2d names other tokens than d2t")
    return ids
