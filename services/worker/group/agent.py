"""Torchrun's agent: starts the ranks of this machine, and starts all of them again when one has ended.

It is the agent of `torch.distributed.run`, but in this process: ranks are forks of it, so that torch and
gRPC are imported once, and a group that is started again need not wait for them.
"""

import logging
import math
import os
import signal
from importlib import import_module

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from services.worker.config import Config, GroupConfig
from services.worker.group.rank import GIVE_UP, run_rank
from services.worker.group.rendezvous import LocalRendezvous

MANY = 1_000_000
MONITOR_SECONDS = 0.1
# Beyond the time that requests in flight have.
SHUTDOWN_SECONDS = 5
# What ranks would else import one by one, each at its start.
PRELOADED = (
    "numpy.ma",
    "outrider.kernels.torch",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)


def run_agent(config: Config) -> int:
    """Runs the ranks of this machine until a signal ends them, and returns the exit status.

    On several machines nothing is started again here: rank 0 must stay where it is known to be, so each agent
    ends with its ranks, and whoever started the agents starts all of them again.
    """
    group = config.group
    _log_as_we_do()
    for module in PRELOADED:
        import_module(module)
    spec = WorkerSpec(
        role="worker",
        local_world_size=group.num_ranks // group.num_nodes,
        entrypoint=run_rank,
        args=(os.getpid(),),
        rdzv_handler=_rendezvous(group),
        max_restarts=MANY if group.num_nodes == 1 else 0,
        monitor_interval=MONITOR_SECONDS,
    )
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, GIVE_UP)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(number.name for number in signals)
    agent = LocalElasticAgent(
        spec,
        # Ranks write where the agent does.
        DefaultLogsSpecs(log_dir=os.devnull),
        start_method="fork",
        shutdown_timeout=math.ceil(config.listen.drain_seconds) + SHUTDOWN_SECONDS,
    )
    try:
        agent.run()
    except SignalException as ended:
        return _status(ended.sigval)
    return 1


def _log_as_we_do() -> None:
    """Leaves torch's records to our own handler: its own imports a compiler to show an exception."""
    for name in ("torch", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "torch":
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            if name.startswith("torch.distributed.elastic"):
                # That it closes processes would stand behind a rank's last word, which says why.
                logger.setLevel(logging.ERROR)


def _rendezvous(group: GroupConfig) -> RendezvousHandler:
    """Where agents meet: on one machine there is nobody to meet."""
    if group.num_nodes == 1:
        return LocalRendezvous()
    meeting = RendezvousParameters(
        "static", group.rendezvous, "outrider", group.num_nodes, group.num_nodes, rank=group.node
    )
    return get_rendezvous_handler(meeting)


def _status(number: signal.Signals) -> int:
    """Returns 2 where a rank has said which setting is wrong."""
    return {GIVE_UP: 2, signal.SIGINT: 130}.get(number, 0)
