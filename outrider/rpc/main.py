"""How a service's process begins and ends."""

import os
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import NoReturn

import structlog
import uvloop

from outrider.rpc.config import ConfigError
from outrider.rpc.telemetry import configure_logging, configure_tracing


def serve_of(module: str) -> Callable[[], Awaitable[None]]:
    """Returns what runs a module's `serve`, which is imported only then.

    It raises ConfigError where something that the module imports is not installed.
    """

    async def serve() -> None:
        try:
            imported = import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed: run make setup") from None
        await imported.serve()

    return serve


def run_service(name: str, main: Callable[[], Awaitable[None]]) -> NoReturn:
    """Runs `main` with logs and traces named after the service, and exits with its status."""
    run_program(name, lambda: _run(name, main))


def run_program(name: str, work: Callable[[], int]) -> NoReturn:
    """Does `work` with logs named after a service, and exits with the status that it returns.

    A ConfigError is one line on stderr and status 2; any other error is logged, status 1.
    """
    configure_logging(name)
    try:
        status = work()
    except KeyboardInterrupt:
        status = 130
    except BaseException as error:
        status = _report(name, error)
    sys.exit(status)


def _run(name: str, main: Callable[[], Awaitable[None]]) -> int:
    provider = configure_tracing(name)

    async def run() -> None:
        await main()

    try:
        uvloop.run(run())
    finally:
        provider.shutdown()
    return 0


def _report(name: str, error: BaseException) -> int:
    if isinstance(error, SystemExit):
        raise error
    config_error = find_config_error(error)
    if config_error is None:
        structlog.get_logger().critical("service_failed", exc_info=error)
        return 1
    sys.stderr.write(f"outrider {name}: {config_error}{os.linesep}")
    return 2


def find_config_error(error: BaseException) -> ConfigError | None:
    """Returns the wrong setting among what an error is made of, if there is one."""
    if isinstance(error, ConfigError):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next(filter(None, map(find_config_error, inner)), None)
