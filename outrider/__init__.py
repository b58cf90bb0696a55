"""The outrider library: clients, contracts and what the services share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    """Imports the clients when they are asked for: the kernels run where there is no gRPC."""
    if name in __all__:
        from outrider import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
