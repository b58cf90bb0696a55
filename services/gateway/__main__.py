"""Starts a gateway: python -m services.gateway."""

from outrider.rpc.main import run_service
from services.gateway.config import Config
from services.gateway.service import serve

if __name__ == "__main__":
    run_service("gateway", lambda: serve(Config.from_env()))
