"""The process of one rank, from its start by torchrun's agent to its end."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from outrider.rpc.main import find_config_error
from outrider.rpc.parent import die_with_parent
from outrider.rpc.server import Listen
from services.worker.config import PORT_STEP, Config
from services.worker.group.follower import serve_follower
from services.worker.group.meeting import Seat
from services.worker.process import end_process, run_worker
from services.worker.service import serve

# To the agent: to start the ranks again is of no use.
GIVE_UP = signal.SIGUSR1
CONFIG_ERROR = 2
# What an agent may take to do so.
UNTIL_ENDED_SECONDS = 30


def run_rank(agent: int, *, hears_us: bool = True) -> NoReturn:
    """Serves as the rank that the environment names, and dies with the agent.

    `hears_us` says whether it is our own, which a wrong setting ends.
    """
    die_with_parent(agent)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, GIVE_UP):
        # A rank that is forked has the agent's handlers.
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = run_worker(_serve)
    if status == CONFIG_ERROR and hears_us:
        os.kill(agent, GIVE_UP)
        time.sleep(UNTIL_ENDED_SECONDS)
    end_process(status)


async def _serve() -> None:
    """Ends the process with a failure in any case: where the agent wanted the end it does not look."""
    seat = await asyncio.to_thread(Seat.from_env)
    _take_name(f"rank {seat.rank}")
    try:
        config = Config.from_env()
        config = replace(config, listen=listen_of(seat.rank, config.listen))
        await (serve(config, seat) if seat.rank == 0 else serve_follower(config, seat))
    except BaseException as error:
        if find_config_error(error) is None:
            raise
        # One rank says what is wrong, though it may be so with all; then the agent ends them.
        if not seat.is_first_to("find a wrong setting"):
            await asyncio.sleep(UNTIL_ENDED_SECONDS)
        raise
    raise SystemExit(1)


def listen_of(rank: int, listen: Listen) -> Listen:
    """Returns where a rank listens; any free port stays any free port."""
    ports = {name: getattr(listen, name) for name in ("grpc_port", "http_port")}
    return replace(listen, **{name: port and port + PORT_STEP * rank for name, port in ports.items()})


def _take_name(name: str) -> None:
    """Gives the process a name in lists of processes, where there is a way: a fork is called as its agent."""
    path = Path("/proc/self/comm")
    if path.exists():
        path.write_text(name, encoding="ascii")
