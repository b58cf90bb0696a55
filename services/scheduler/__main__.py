"""Runs the scheduler: python -m services.scheduler."""

from outrider.rpc.main import run_service, serve_of

if __name__ == "__main__":
    run_service("scheduler", serve_of("services.scheduler.service"))
