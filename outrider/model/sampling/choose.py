"""From logits to what a backend chooses tokens by: processed scores, and how each row is sampled."""

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from outrider.kernels.interface import Kernels, SamplingRows, Verified
from outrider.kernels.torch import sample_verify
from outrider.model.sampling.processors import Chain, process
from outrider.model.transfer import to_device


def choose(logits: Tensor, chains: list[Chain], kernels: Kernels) -> Verified:  # [R, V]
    """Chooses the model's own token of each row and compares drafts; rows follow the chains.

    The logits are left as they are. With a backend that is CAPTURABLE nothing waits for the device.
    """
    rows = to_device(sampling_rows(chains), logits.device)
    return kernels.sample_and_verify(logits, _scores(logits, chains), rows)


def noised_scores(logits: Tensor, chains: list[Chain]) -> Tensor:  # [R, V] -> [R, V]
    """Returns what the tokens of each row are ranked by: the logits themselves where nothing changes them."""
    return sample_verify.noised_scores(_scores(logits, chains), sampling_rows(chains))


def sampling_rows(chains: list[Chain]) -> SamplingRows:
    """Lays out how the rows of the chains are sampled, on the host."""
    num_rows = [chain.num_rows for chain in chains]
    table = np.array([(*chain.state.row_parameters, chain.state.num_tokens) for chain in chains])
    parameters = table.repeat(num_rows, axis=0)
    # A row behind draft tokens chooses for a later position.
    parameters[:, -1] += np.array([place for num in num_rows for place in range(num)])
    drafts = np.array([token for chain in chains for token in (*chain.draft, -1)], dtype=np.int64)
    samplings = [chain.state.sampling for chain in chains if chain.state.sampling.temperature > 0]
    return SamplingRows(
        parameters=torch.from_numpy(parameters),
        drafts=torch.from_numpy(drafts),
        firsts=torch.from_numpy(np.array([*accumulate(num_rows, initial=0)])),
        any_top_k=any(sampling.top_k for sampling in samplings),
        any_top_p=any(sampling.top_p < 1 for sampling in samplings),
    )


def _scores(logits: Tensor, chains: list[Chain]) -> Tensor:
    """Returns the processed logits: the same tensor where there is nothing to do."""
    if all(chain.state.is_plain for chain in chains):
        return logits
    scores = logits.clone()
    process(scores, chains)
    return scores
