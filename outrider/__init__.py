"""The outrider library: clients, contracts and what the services share."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider import client
    from outrider.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "client"]


def __getattr__(name: str) -> Any:
    """Imports the clients when they are asked for: the kernels run where there is no gRPC."""
    if name in __all__:
        module = import_module("outrider.client")
        return module if name == "client" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
