"""The KV cache of one rank: per layer, one row of a fixed width for every token slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class KVCache:
    """Blocks of token slots, slot = block_id * block_size + offset; zeroed, so that none holds a NaN."""

    layers: tuple[Tensor, ...]  # each [num_blocks * block_size, kv_width]
    num_blocks: int
    block_size: int

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "KVCache":
        shape = (num_blocks * block_size, config.attention.kv_width)
        layers = tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers))
        return cls(layers=layers, num_blocks=num_blocks, block_size=block_size)
