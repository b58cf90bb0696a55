"""The KV cache of one rank: per layer, one row of a fixed width for every token slot."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class KVCache:
    """Blocks of token slots, slot = block_id * block_size + offset; every element is finite at all times."""

    layers: tuple[Tensor, ...]  # each [num_blocks * block_size, kv_width]
    num_blocks: int
    block_size: int

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "KVCache":
        shape = (num_blocks * block_size, config.attention.kv_width)
        layers = tuple(zeros(shape, dtype, device) for _ in range(config.num_layers))
        return cls(layers=layers, num_blocks=num_blocks, block_size=block_size)


def zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros; on a CPU they take no memory before they are written, while torch would write them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)


def write_tokens(cache: Tensor, slots: Tensor, tokens: Tensor) -> None:
    """Write tokens [T, kv_width] into their slots of one layer.

    Attention multiplies what it must not see by exact zeros, which would not hide a NaN or an infinity: one
    sequence that overflows must not spoil the next owner of its blocks.
    """
    cache.index_copy_(0, slots, tokens.nan_to_num())
