"""Choosing tokens from logits: exact sampling by noise, the same whatever the batch and the drafts."""

import numpy as np
import torch
from torch import Tensor

from outrider.model.sampling.filters import filter_min_p, filter_top_k, filter_top_p
from outrider.model.sampling.philox import gumbel_noise
from outrider.model.sampling.processors import NEGATIVE_INFINITY, Chain, process

# Noise lies in [-3.14, 22.88]: a token whose score is further below the best than the difference cannot win.
MAX_DISTANCE = 26.1
# Above this share of groups of four tokens that can win, gathering them costs more than it saves.
_MAX_GATHERED = 0.5
# Rows whose noise is made at once: their words stay in the cache.
_NUM_TOKENS_AT_ONCE = 1 << 17


def choose(logits: Tensor, chains: list[Chain]) -> np.ndarray:  # [R, V] -> [R]
    """Returns the model's own token of each row, -1 where no token is allowed; rows follow the chains.

    The logits must be finite and are left as they are.
    """
    return _argmax(noised_scores(logits, chains))


def noised_scores(logits: Tensor, chains: list[Chain]) -> Tensor:  # [R, V] -> [R, V]
    """Returns what the tokens of each row are ranked by: the logits themselves where nothing changes them."""
    if all(chain.state.is_plain and chain.state.sampling.temperature == 0 for chain in chains):
        return logits
    scores = logits.clone()
    process(scores, chains)
    num_rows = [chain.num_rows for chain in chains]
    table = np.repeat(np.array([chain.state.row_parameters for chain in chains]), num_rows, axis=0)
    positions = np.concatenate(
        [np.arange(rows) + chain.state.num_tokens for rows, chain in zip(num_rows, chains, strict=True)]
    )
    sampled = np.repeat(np.array([chain.state.sampling.temperature > 0 for chain in chains]), num_rows)
    rows = torch.from_numpy(sampled.nonzero()[0]).to(scores.device)
    if len(rows) == len(scores):
        scores = _filter_and_add_noise(scores, table, positions)
    elif len(rows):
        scores[rows] = _filter_and_add_noise(scores[rows], table[sampled], positions[sampled])
    return scores


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


def _filter_and_add_noise(scores: Tensor, table: np.ndarray, positions: np.ndarray) -> Tensor:
    """Returns the noised scores of rows; `table` holds their SamplingState.row_parameters."""
    columns = torch.from_numpy(table).to(scores.device)  # [n, 7]
    temperature, top_k, top_p, min_p = columns[:, :4].unbind(dim=1)
    scores /= temperature.to(scores.dtype)[:, None]
    # Decided on the host's copy: a step without filters should not pay for them.
    if table[:, 1].any():
        filter_top_k(scores, top_k.to(torch.int64))
    if (table[:, 2] < 1).any():
        filter_top_p(scores, top_p)
    if table[:, 3].any():
        filter_min_p(scores, min_p)
    keys = torch.from_numpy(np.column_stack([table[:, 4:], positions]).astype(np.int64)).to(scores.device)
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
