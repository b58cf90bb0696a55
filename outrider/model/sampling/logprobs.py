"""Log-probabilities of the raw distribution: before penalties, masks and temperature."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Logprobs:
    """Log-probability of a chosen token and the likeliest alternatives, best first, ties by lowest token."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(logits: Tensor, token_ids: list[int], num_top: list[int]) -> list[Logprobs]:  # [n, V]
    """Returns, per row of raw logits, the log-probabilities of one chosen token and of `num_top` others."""
    values = torch.log_softmax(logits, dim=-1)
    chosen = values.gather(1, torch.tensor(token_ids, device=values.device)[:, None])[:, 0].tolist()
    tops = _tops(values, max(num_top))
    return [
        Logprobs(logprob=logprob, top=tuple(top[:num]))
        for logprob, top, num in zip(chosen, tops, num_top, strict=True)
    ]


def _tops(values: Tensor, num_top: int) -> list[list[tuple[int, float]]]:  # [n, V]
    """Returns the highest entries of each row; topk alone would pick any of those tied with the last."""
    tops: list[list[tuple[int, float]]] = [[] for _ in values]
    if num_top:
        last = values.topk(min(num_top, values.shape[-1])).values[:, -1:]
        rows, token_ids = (values >= last).nonzero(as_tuple=True)
        entries = zip(rows.tolist(), token_ids.tolist(), values[rows, token_ids].tolist(), strict=True)
        for row, token_id, logprob in entries:
            tops[row].append((token_id, logprob))
    return [sorted(top, key=lambda entry: (-entry[1], entry[0])) for top in tops]
