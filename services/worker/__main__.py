"""Runs the worker: python -m services.worker."""

from outrider.rpc.main import run_service
from services.worker.service import serve

if __name__ == "__main__":
    run_service("worker", serve)
