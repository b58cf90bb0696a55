"""A rank that follows rank 0: it computes the steps that it is told of, and answers for its health alone."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from outrider.model.transformer import Transformer
from outrider.rpc.server import RpcServer
from services.worker.config import Config
from services.worker.group.meeting import Join, Seat
from services.worker.group.messages import Kind, Message
from services.worker.group.mover import Mover
from services.worker.load import IsStopped, LoadingStopped, load_rank
from services.worker.memory import keep_freed_memory
from services.worker.service import SERVICE

# Beyond the time that rank 0 lets requests in flight go on.
PATIENCE_SECONDS = 5

log = structlog.get_logger()


async def serve_follower(config: Config, seat: Seat) -> None:
    """Follows until rank 0 ends the group; told to stop, it waits for that a while."""
    keep_freed_memory()
    join = Join(seat=seat, peer_seconds=config.group.peer_seconds, on_lost=_end)
    stopped = asyncio.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="step") as thread:
        async with RpcServer(config.listen, service=SERVICE) as server:
            await server.start()
            loop = asyncio.get_running_loop()

            def on_loaded() -> None:
                loop.call_soon_threadsafe(server.set_serving, True)

            following = loop.run_in_executor(thread, _follow, config, stopped.is_set, join, on_loaded)
            following.add_done_callback(lambda _: server.begin_shutdown())
            await server.wait_for_shutdown()
            stopped.set()
            if not following.done():
                join.stop()
            await asyncio.wait([following], timeout=config.listen.drain_seconds + PATIENCE_SECONDS)
            if not following.done():
                _end("told to stop, and rank 0 does not end the group")
            await following


def _follow(config: Config, is_stopped: IsStopped, join: Join, on_loaded: Callable[[], None]) -> None:
    """Loads this rank's part of the model, and computes steps until rank 0 says that it was the last."""
    try:
        rank = load_rank(config, is_stopped, join)
    except LoadingStopped:
        return
    assert rank.group is not None
    channel, lifeline = rank.group.channel, rank.group.lifeline
    lifeline.serve()
    log.info("rank_loaded", rank=join.seat.rank)
    on_loaded()
    mover = Mover(rank.runner.model, rank.group.store)
    while (message := channel.receive()).kind is not Kind.END:
        _check_placement(message, rank.runner.model)
        match message.kind:
            case Kind.PREPARE:
                mover.prepare(message.moves)
            case Kind.PLACE:
                mover.place(message.moves)
            case _:
                assert message.batch is not None
                rank.runner.forward(message.batch)
    lifeline.stop()
    mover.end()


def _check_placement(message: Message, model: Transformer) -> None:
    """Ends the process where its experts are not where rank 0 has them: tokens would be wrong."""
    version = model.placement.version if model.placement else 0
    if message.placement_version != version:
        _end(f"the placement is version {version}, and rank 0 has {message.placement_version}")


def _end(reason: str) -> None:
    """Ends the process at once: nothing of it is of use without the others."""
    log.critical("group_lost", reason=reason)
    os._exit(1)
