"""A rank that follows ends when it is told to, whatever it waits for."""

import asyncio
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from services.worker.group.follower import serve_follower
from services.worker.group.meeting import Seat
from tests.groups import config_of

PATIENCE_SECONDS = 20


def follow(model_dir):
    seat = Seat(
        rank=1, num_ranks=2, local_rank=1, is_on_one_machine=True, host="127.0.0.1", store=HashStore()
    )
    config = config_of(model_dir)
    # It would wait for rank 0 to end the group for longer than the test.
    patient = replace(config, listen=replace(config.listen, drain_seconds=600))
    asyncio.run(serve_follower(patient, seat))


def wait_until_it_handles(number, pid):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        if caught >> (number - 1) & 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_waits_for_rank_0_ends_when_it_is_told_to(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=follow, args=(tmp_path,))
    process.start()
    assert process.pid is not None
    try:
        wait_until_it_handles(signal.SIGTERM, process.pid)
        os.kill(process.pid, signal.SIGTERM)
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 1
    finally:
        process.kill()
        process.join()
