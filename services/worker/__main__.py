"""Runs the worker: python -m services.worker. Where there are several ranks it becomes their agent."""

import os
from typing import NoReturn

from outrider.rpc.main import run_program
from services.worker.config import Config
from services.worker.process import end_process, run_worker


def _main() -> NoReturn:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun was called by somebody else, with us as its program.
        from services.worker.group.rank import run_rank

        run_rank(os.getppid(), hears_us=False)
    config = Config.from_env()
    if config.group.num_ranks == 1:
        from services.worker.service import serve

        end_process(run_worker(serve))
    num_here = config.group.num_ranks // config.group.num_nodes
    # Read when torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_here)))
    from services.worker.group.agent import run_agent

    end_process(run_agent(config))


if __name__ == "__main__":
    run_program("worker", _main)
