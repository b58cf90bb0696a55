"""The outrider library: clients, contracts and what the services share."""

from outrider.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
