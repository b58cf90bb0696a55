"""The output head: each rank scores its own part of the vocabulary."""

import torch
from torch import Tensor

from outrider.kernels.interface import Kernels
from outrider.model.ranks import Ranks
from outrider.model.shard import vocabulary_share


class OutputHead:
    """Hidden vectors to logits of the whole vocabulary: [R, D] -> [R, V] fp32, on every rank."""

    def __init__(self, weight: Tensor, vocab_size: int, kernels: Kernels, ranks: Ranks) -> None:
        """`weight` holds the rows of the rank's vocabulary_part."""
        self._kernels = kernels
        self._ranks = ranks
        self._vocab_size = vocab_size
        # All ranks gather shares of one size: the last ones' are padded.
        num_missing = vocabulary_share(vocab_size, ranks) - len(weight)
        if num_missing:
            weight = torch.nn.functional.pad(weight, (0, 0, 0, num_missing))
        self._weight = kernels.pack_linear(weight)

    def __call__(self, x: Tensor) -> Tensor:
        logits = self._kernels.linear(x, self._weight)
        if self._ranks.num_ranks > 1:
            parts = self._ranks.all_gather(logits)  # [ranks, R, share]
            logits = parts.transpose(0, 1).flatten(1)[:, : self._vocab_size]
        return logits.float().contiguous()
