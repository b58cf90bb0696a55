"""The reference for choosing tokens: exact sampling by noise, the same whatever the batch and the drafts."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from outrider.kernels.interface import SamplingRows, Verified
from outrider.kernels.torch.filters import NEGATIVE_INFINITY, filter_min_p, filter_top_k, filter_top_p
from outrider.kernels.torch.philox import gumbel_noise

# Noise lies in [-3.14, 22.88]: a token whose score is further below the best than the difference cannot win.
MAX_DISTANCE = 26.1
# Above this share of groups of four tokens that can win, gathering them costs more than it saves.
_MAX_GATHERED = 0.5
# Rows whose noise is made at once: their words stay in the cache.
_NUM_TOKENS_AT_ONCE = 1 << 17


def sample_and_verify(logits: Tensor, scores: Tensor, rows: SamplingRows) -> Verified:
    """Chooses each row's token and compares it with the draft; see Kernels."""
    # A sum is finite only if all its terms are, and costs a fiftieth of looking at each.
    finite = np.isfinite(logits.sum(dim=-1).cpu().numpy())  # [R]
    if not finite.all():
        scores = torch.where(torch.from_numpy(finite).to(scores.device)[:, None], scores, 0.0)
    tokens = np.where(finite, _argmax(noised_scores(scores, rows)), -1)
    num_accepted, bonus = _compare(tokens.tolist(), rows)
    return Verified(
        tokens=torch.from_numpy(tokens).to(logits.device),
        finite=torch.from_numpy(finite).to(logits.device),
        num_accepted=torch.from_numpy(np.array(num_accepted)).to(logits.device),
        bonus=torch.from_numpy(np.array(bonus)).to(logits.device),
    )


def noised_scores(scores: Tensor, rows: SamplingRows) -> Tensor:  # [R, V] -> [R, V]
    """Returns what the tokens of each row are ranked by: the scores themselves at temperature 0."""
    # Decided on the host's copy: a step without noise or filters should not pay for them.
    table = rows.parameters.cpu().numpy()
    sampled = table[:, 0] > 0
    if not sampled.any():
        return scores
    if sampled.all():
        return _filter_and_add_noise(scores, table)
    index = torch.from_numpy(sampled.nonzero()[0]).to(scores.device)
    return scores.index_copy(0, index, _filter_and_add_noise(scores[index], table[sampled]))


def _argmax(scores: Tensor) -> np.ndarray:
    """Returns the lowest token with the highest score of each row, -1 if all are minus infinity."""
    if scores.device.type == "cpu":
        values = scores.numpy()
        # A tenth of the time of torch's.
        best = values.argmax(axis=-1)
    else:
        best = scores.argmax(dim=-1).cpu().numpy()
    highest = scores.gather(1, torch.from_numpy(best).to(scores.device)[:, None])[:, 0].cpu().numpy()
    return np.where(highest == NEGATIVE_INFINITY, -1, best)


def _compare(tokens: list[int], rows: SamplingRows) -> tuple[list[int], list[int]]:
    """Returns how many leading drafts of each sequence are right, and the token behind them."""
    # By lists: there are few rows where speed matters, and numpy's calls would take longer.
    drafts, num_accepted, bonus = rows.drafts.tolist(), [], []
    for first, end in pairwise(rows.firsts.tolist()):
        row = first
        while row < end and tokens[row] == drafts[row] >= 0:
            row += 1
        num_accepted.append(row - first)
        bonus.append(tokens[row] if row < end else -1)
    return num_accepted, bonus


def _filter_and_add_noise(scores: Tensor, table: np.ndarray) -> Tensor:
    """Returns the noised scores of rows; `table` holds their SamplingRows.parameters."""
    columns = torch.from_numpy(table).to(scores.device)  # [n, 8]
    temperature, top_k, top_p, log_min_p = columns[:, :4].unbind(dim=1)
    scores = scores / temperature.to(scores.dtype)[:, None]
    if table[:, 1].any():
        filter_top_k(scores, top_k.to(torch.int64))
    if (table[:, 2] < 1).any():
        filter_top_p(scores, top_p)
    if (table[:, 3] > NEGATIVE_INFINITY).any():
        filter_min_p(scores, log_min_p)
    keys = columns[:, 4:].to(torch.int64)
    vocab_size = scores.shape[-1]
    if vocab_size % 4:
        scores = torch.nn.functional.pad(scores, (0, -vocab_size % 4), value=NEGATIVE_INFINITY)
    at_once = max(1, _NUM_TOKENS_AT_ONCE // scores.shape[-1])
    parts = zip(scores.split(at_once), keys.split(at_once), strict=True)
    return torch.cat([_add_noise(part, key) for part, key in parts])[:, :vocab_size]


def _add_noise(scores: Tensor, keys: Tensor) -> Tensor:  # [n, V], [n, 4] -> [n, V]
    """Returns scores plus noise, minus infinity for tokens that cannot win."""
    can_win = (scores >= scores.amax(dim=-1, keepdim=True) - MAX_DISTANCE) & (scores > NEGATIVE_INFINITY)
    scores = torch.where(can_win, scores, NEGATIVE_INFINITY).view(len(scores), -1, 4)
    # Four flags read as one number tell whether any of them is set.
    rows, groups = can_win.view(torch.int32).nonzero(as_tuple=True)  # of [n, V/4]
    if len(rows) > _MAX_GATHERED * scores.shape[0] * scores.shape[1]:
        low, high, choice, position = (key[:, None] for key in keys.unbind(dim=1))
        every_group = torch.arange(scores.shape[1], device=scores.device)[None]
        scores += gumbel_noise((low, high), choice, position, every_group)
    else:
        low, high, choice, position = keys[rows].unbind(dim=1)
        scores[rows, groups] += gumbel_noise((low, high), choice, position, groups)
    return scores.flatten(1)
