"""Runs the drafter: python -m services.drafter."""

from outrider.rpc.main import run_service
from services.drafter.service import serve

if __name__ == "__main__":
    run_service("drafter", serve)
