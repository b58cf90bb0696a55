"""Top-k, top-p and min-p: which scores stay in the race. What ties with the last one kept is kept."""

import torch
from torch import Tensor

NEGATIVE_INFINITY = float("-inf")

# How many of the best scores are looked at before a whole row is sorted.
_NUM_BEST = 256


def filter_top_k(scores: Tensor, top_k: Tensor) -> None:  # [n, V], [n]
    """Drops, in place, the scores below the k-th highest of their row; 0 keeps all."""
    num_best = min(int(top_k.max()), scores.shape[-1])
    rows = ((top_k > 0) & (top_k < scores.shape[-1])).nonzero()[:, 0]
    if len(rows):
        subset = scores[rows]
        last_kept = subset.topk(num_best).values.gather(1, top_k[rows, None] - 1)
        scores[rows] = subset.masked_fill_(subset < last_kept, NEGATIVE_INFINITY)


def filter_top_p(scores: Tensor, top_p: Tensor) -> None:  # [n, V], [n] float64
    """Drops, in place, the scores below those whose probabilities reach top_p; 1 keeps all."""
    rows = (top_p < 1).nonzero()[:, 0]
    if len(rows):
        subset = scores[rows]
        last_kept = _last_kept_by_top_p(subset, top_p[rows])
        scores[rows] = subset.masked_fill_(subset < last_kept[:, None], NEGATIVE_INFINITY)


def filter_min_p(scores: Tensor, log_min_p: Tensor) -> None:  # [n, V], [n] float64
    """Drops, in place, the scores whose probability is below min_p times the best's; log 0 keeps all."""
    lowest = scores.amax(dim=-1) + log_min_p.to(scores.dtype)
    scores.masked_fill_(scores < lowest[:, None], NEGATIVE_INFINITY)


def _last_kept_by_top_p(scores: Tensor, top_p: Tensor) -> Tensor:  # [n, V], [n] -> [n]
    """Returns each row's lowest score kept; sums run along the row in float64, so the row alone decides."""
    best = scores.amax(dim=-1, keepdim=True).to(torch.float64)
    target = top_p * (scores.to(torch.float64) - best).exp_().cumsum(dim=-1)[:, -1]
    highest = scores.topk(min(_NUM_BEST, scores.shape[-1])).values  # [n, _NUM_BEST], falling
    if bool(((highest.to(torch.float64) - best).exp_().cumsum(dim=-1)[:, -1] < target).any()):
        highest = scores.sort(dim=-1, descending=True).values
    reached = (highest.to(torch.float64) - best).exp_().cumsum(dim=-1) >= target[:, None]
    # Rounding may leave the target unreached: then the last score, the lowest, is the last kept.
    reached[:, -1] = True
    return highest.gather(1, reached.to(torch.int8).argmax(dim=-1, keepdim=True))[:, 0]
