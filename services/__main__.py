"""Runs the local stack: `python -m services`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from services.local.command import report, run
from services.local.settings import DEFAULT_MODEL, DRAFT_SOURCES, Settings
from services.local.stack import Stack


def parse(arguments: list[str]) -> tuple[Settings, bool]:
    """Returns what to run, and whether the services log to stderr."""
    parser = argparse.ArgumentParser(prog="python -m services", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, metavar="DIR", help="a checkpoint")
    parser.add_argument(
        "--drafter",
        default=",".join(DRAFT_SOURCES),
        metavar="LIST",
        help=f"comma-separated of {', '.join(DRAFT_SOURCES)}; or none",
    )
    parser.add_argument("--grpc-port", type=int, default=50051, metavar="P", help="0: any free port")
    parser.add_argument("--http-port", type=int, default=8080, metavar="P", help="0: any free port")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the logs of the services")
    found = parser.parse_args(arguments)
    drafter = () if found.drafter == "none" else tuple(found.drafter.split(","))
    settings = Settings(
        model=found.model.absolute(), drafter=drafter, grpc_port=found.grpc_port, http_port=found.http_port
    )
    return settings, found.verbose


async def serve(settings: Settings, *, verbose: bool) -> None:
    """Runs the stack until SIGINT or SIGTERM."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with Stack(settings, report=report, verbose=verbose) as stack:
        if stack.log_directory:
            report(f"logs in {stack.log_directory}")
        async with asyncio.TaskGroup() as tasks:
            start = tasks.create_task(_announce(stack))
            await stopped.wait()
            start.cancel()
        report("stopping")


async def _announce(stack: Stack) -> None:
    await stack.wait_until_ready()
    sys.stdout.write(f"gRPC  {stack.grpc_address}\nHTTP  http://{stack.http_address}  (/healthz, /metrics)\n")
    sys.stdout.write('ready; try: outrider chat "What is 17 + 25?"  (Ctrl-C stops)\n')
    sys.stdout.flush()


def main() -> int:
    """Returns the exit status."""
    settings, verbose = parse(sys.argv[1:])
    return run(serve(settings, verbose=verbose))


if __name__ == "__main__":
    sys.exit(main())
