"""Runs the scheduler: python -m services.scheduler."""

from outrider.rpc.config import ConfigError
from outrider.rpc.main import run_service


async def main() -> None:
    """Runs the service. Raises ConfigError where a part that is built beside it is not there."""
    try:
        from services.scheduler.service import serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: run make setup") from None
    await serve()


if __name__ == "__main__":
    run_service("scheduler", main)
