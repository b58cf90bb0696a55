"""Runs the drafter: python -m services.drafter."""

from outrider.rpc.main import run_service, serve_of

if __name__ == "__main__":
    run_service("drafter", serve_of("services.drafter.service"))
