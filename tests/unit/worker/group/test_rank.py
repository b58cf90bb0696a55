"""What a rank does that cannot serve as it is set."""

import multiprocessing
import os
import signal

from services.worker.group.rank import GIVE_UP, run_rank
from services.worker.group.rendezvous import LocalRendezvous

PATIENCE_SECONDS = 20


def be_rank(agent, variables):
    os.environ.update(variables)
    run_rank(agent, hears_us=False)


def test_a_wrong_setting_ends_no_agent_that_is_not_ours():
    rendezvous = LocalRendezvous()
    meeting = rendezvous.next_rendezvous().bootstrap_store_info
    assert meeting is not None
    names = ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
    variables = dict.fromkeys(names, "0") | dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE"), "1")
    variables |= {"MASTER_ADDR": meeting.master_addr, "MASTER_PORT": str(meeting.master_port)}
    variables |= {"OUTRIDER_WORKER_MODEL_DIR": "models/tiny", "OUTRIDER_WORKER_DTYPE": "int8"}
    heard = []
    before = signal.signal(GIVE_UP, lambda number, _: heard.append(number))
    process = multiprocessing.get_context("fork").Process(target=be_rank, args=(os.getpid(), variables))
    process.start()
    try:
        process.join(PATIENCE_SECONDS)
        assert (process.exitcode, heard) == (2, [])
    finally:
        process.kill()
        process.join()
        signal.signal(GIVE_UP, before)
