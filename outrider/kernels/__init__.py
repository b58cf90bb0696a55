"""The kernels behind the network: one interface, and backends that implement it, chosen by name."""

from importlib import import_module
from typing import cast

from outrider.kernels.interface import Kernels

BACKENDS = {"torch": "outrider.kernels.torch"}


def load_kernels(backend: str) -> Kernels:
    """The backend of that name; imported here so that the others' libraries need not be installed."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
    return cast(Kernels, import_module(BACKENDS[backend]))
