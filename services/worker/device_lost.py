"""Errors of a GPU after which its process computes nothing more, whatever the sequences."""

import torch

# How CUDA's libraries and Triton's launcher begin what they raise as a plain RuntimeError.
_BEGINNINGS = ("CUDA error", "Triton Error [CUDA]")


def is_lost(error: BaseException) -> bool:
    """Whether every later step would fail as this one did; missing memory may be there for the next."""
    is_of_device = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and str(error).startswith(_BEGINNINGS)
    )
    return is_of_device and "out of memory" not in str(error)
