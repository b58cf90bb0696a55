"""Runs the scheduler: python -m services.scheduler."""

from outrider.rpc.main import run_service
from services.scheduler.service import serve

if __name__ == "__main__":
    run_service("scheduler", serve)
