"""The sigmoid gate, with groups and a bias that steers choice only (DeepSeek-V3, arXiv 2412.19437, 2.1.2)."""

import torch
from torch import Tensor

from outrider.kernels.interface import Choice, GateRule


def gate(logits: Tensor, bias: Tensor, rule: GateRule) -> Choice:
    """Choose experts by sigmoid(logits) + bias, weigh them by sigmoid(logits): logits [T, E] fp32.

    Stable sorts stand in for topk, whose order among equals is not defined. The sigmoid is spelled out for
    the reason given in silu_product.
    """
    scores = 1 / (1 + torch.exp(-logits))
    biased = scores + bias
    if rule.num_groups > 1:
        biased = biased.masked_fill(~kept_by_group(biased, rule), -torch.inf)
    experts = biased.sort(dim=-1, descending=True, stable=True).indices[:, : rule.num_experts_per_token]
    weights = scores.gather(1, experts)
    if rule.normalize_weights:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return Choice(experts=experts, weights=weights * rule.scaling)


def kept_by_group(biased: Tensor, rule: GateRule) -> Tensor:
    """Whether an expert's group is among the best, by the sum of its two best scores: [T, E] bool."""
    grouped = biased.unflatten(-1, (rule.num_groups, -1))
    best = grouped.sort(dim=-1, descending=True).values[..., :2].sum(-1)
    kept = best.sort(dim=-1, descending=True, stable=True).indices[:, : rule.num_kept_groups]
    mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
    return mask.repeat_interleave(grouped.shape[-1], dim=-1)
