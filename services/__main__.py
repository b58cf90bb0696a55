"""Runs the local stack: `python -m services`."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from outrider.client.channel import DEFAULT_TARGET
from services.local.child import StartError
from services.local.command import report, run
from services.local.settings import DEFAULT_MODEL, DRAFT_SOURCES, Settings, default_sources
from services.local.stack import Stack
from services.local.state import default_state


def parse(arguments: list[str]) -> tuple[Settings, bool]:
    """Returns what to run, and whether the services log to stderr; raises StartError for a wrong option."""
    found = build_parser().parse_args(arguments)
    state = None if found.state == "none" else Path(found.state or default_state()).absolute()
    settings = Settings(
        model=found.model.absolute(),
        drafter=_sources(found.drafter, found.model, found.draft_model),
        draft_model=found.draft_model and found.draft_model.absolute(),
        draft_head=found.draft_head and found.draft_head.absolute(),
        num_ranks=found.ranks,
        num_pairs=found.pairs,
        state=state,
        grpc_port=found.grpc_port,
        http_port=found.http_port,
    )
    return settings, found.verbose


def _sources(named: str | None, model: Path, draft_model: Path | None) -> tuple[str, ...]:
    if named is None:
        return default_sources(model, draft_model)
    return () if named == "none" else tuple(dict.fromkeys(named.split(",")))


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = argparse.ArgumentParser(prog="python -m services", description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, default=DEFAULT_MODEL, metavar="DIR", help="a checkpoint")
    sources = f"comma-separated of {', '.join(DRAFT_SOURCES)}; or none"
    add("--drafter", metavar="LIST", help=f"{sources} (default: suffix, and model if there is a draft model)")
    add("--draft-model", type=Path, metavar="DIR", help="default: draft-model beside the model's files")
    add("--draft-head", type=Path, metavar="DIR", help="default: draft-head beside the model's files")
    add("--ranks", type=int, default=1, metavar="N", help="processes that hold the model (default: 1)")
    add("--pairs", type=int, default=1, metavar="N", help="schedulers with such a group each (default: 1)")
    kept = "where what is learnt is kept; or none (default: outrider in $XDG_STATE_HOME)"
    add("--state", metavar="DIR", help=kept)
    add("--grpc-port", type=int, default=50051, metavar="P", help="0: any free port (default: %(default)s)")
    add("--http-port", type=int, default=8080, metavar="P", help="0: any free port (default: %(default)s)")
    add("-v", "--verbose", action="store_true", help="show the logs of the services")
    return parser


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
    sys.stdout.write(f"gRPC  {stack.grpc_address}\nHTTP  {stack.http_url}  (/healthz, /livez, /metrics)\n")
    sys.stdout.write(f'ready; try: {_command(stack)} "What is 17 + 25?"  (Ctrl-C stops)\n')
    sys.stdout.flush()


def _command(stack: Stack) -> str:
    """Returns how to ask this stack from where it was started."""
    script = Path(sys.executable).with_name("outrider")
    command = os.path.relpath(script) if script.exists() else "python -m outrider.cli"
    target = "" if stack.grpc_address == DEFAULT_TARGET else f" --target {stack.grpc_address}"
    return f"{command} chat{target}"


def main() -> int:
    """Returns the exit status."""
    try:
        settings, verbose = parse(sys.argv[1:])
    except StartError as error:
        report(str(error))
        return 2
    return run(serve(settings, verbose=verbose))


if __name__ == "__main__":
    sys.exit(main())
