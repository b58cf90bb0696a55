"""The kernels behind the network: one interface, and backends that implement it, chosen by name."""

from importlib import import_module
from typing import cast

from outrider.kernels.interface import Kernels

BACKENDS = {"torch": "outrider.kernels.torch", "triton": "outrider.kernels.triton"}
"""What a group may serve with: the bits of a row are its own."""

DRAFTING = "drafting"
"""What guesses may be computed with, and nothing else."""


def load_kernels(backend: str) -> Kernels:
    """The backend of that name; imported here so that the others' libraries need not be installed."""
    modules = {**BACKENDS, DRAFTING: "outrider.kernels.drafting"}
    if backend not in modules:
        raise ValueError(f"backend {backend!r} is not one of {', '.join(modules)}")
    return cast(Kernels, import_module(modules[backend]))
