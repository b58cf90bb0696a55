"""A lifeline says when the other end has ended or is stopped, and at no other time."""

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from services.worker.group.introductions import KEY, call_leader, receive_peers
from services.worker.group.lifeline import ENDING, SERVING, Identity, Lifeline, Peer

# Short of it nothing is judged; a test waits a few times as long.
LIMIT_SECONDS = 0.3
PATIENCE_SECONDS = 20


@contextmanager
def lifeline_to(identity):
    """Gives a lifeline that runs, the other end of its connection, and what it reports."""
    reports: queue.Queue[str] = queue.Queue()
    ours, theirs = socket.socketpair()
    lifeline = Lifeline([Peer(identity, ours)], limit_seconds=LIMIT_SECONDS, on_lost=reports.put)
    lifeline.start()
    with ours, theirs:
        yield lifeline, theirs, reports
        lifeline.stop()


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def elsewhere(rank=1):
    return Identity(rank=rank, pid=1, machine="another")


def beat_until(stopped, connection):
    while not stopped.wait(LIMIT_SECONDS / 10):
        connection.send(SERVING)


def test_a_peer_that_ends_is_lost_at_once():
    with lifeline_to(elsewhere()) as (_, theirs, reports):
        theirs.close()
        assert reports.get(timeout=PATIENCE_SECONDS) == "rank 1 has ended"


def test_a_peer_that_serves_and_falls_silent_is_lost_and_killed(sleeper):
    identity = Identity(rank=1, pid=sleeper.pid, machine=Identity.own(0).machine)
    with lifeline_to(identity) as (_, theirs, reports):
        theirs.send(SERVING)
        assert reports.get(timeout=PATIENCE_SECONDS) == "rank 1 gives no sign of life"
    assert sleeper.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_process_of_another_machine_is_not_killed_by_its_number(sleeper):
    with lifeline_to(Identity(rank=1, pid=sleeper.pid, machine="another")) as (_, theirs, reports):
        theirs.send(SERVING)
        reports.get(timeout=PATIENCE_SECONDS)
    assert sleeper.poll() is None


def test_a_peer_that_beats_or_loads_is_not_lost():
    stopped = threading.Event()
    with lifeline_to(elsewhere()) as (_, theirs, reports):
        with pytest.raises(queue.Empty):
            reports.get(timeout=2 * LIMIT_SECONDS)
        beating = threading.Thread(target=beat_until, args=(stopped, theirs))
        beating.start()
        with pytest.raises(queue.Empty):
            reports.get(timeout=3 * LIMIT_SECONDS)
        stopped.set()
        beating.join()


def test_a_peer_that_ends_as_it_said_is_not_lost():
    with lifeline_to(elsewhere()) as (_, theirs, reports):
        theirs.send(SERVING + ENDING)
        theirs.close()
        with pytest.raises(queue.Empty):
            reports.get(timeout=3 * LIMIT_SECONDS)


def test_beats_say_whether_their_sender_loads_serves_or_ends():
    with lifeline_to(elsewhere()) as (lifeline, theirs, _):
        assert theirs.recv(1) == b"l"
        lifeline.serve()
        while theirs.recv(1) != SERVING:
            pass
        lifeline.stop()
        while theirs.recv(1) != ENDING:
            pass


@contextmanager
def receiving(num_ranks):
    """Has rank 0 wait for the others, and gives the store, what it finds, and how to wait for that."""
    store, found = HashStore(), []
    here = "127.0.0.1"
    leading = threading.Thread(
        target=lambda: found.extend(receive_peers(store, num_ranks, here, listen_on=here)), daemon=True
    )
    leading.start()
    yield store, found, lambda: leading.join(PATIENCE_SECONDS)
    for peer in found:
        peer.connection.close()


def test_ranks_find_rank_0_by_the_store_and_it_takes_no_stranger_for_one():
    with receiving(3) as (store, found, wait):
        first = call_leader(store, 1)
        stranger = socket.create_connection(first.connection.getpeername())
        stranger.sendall(b'{"word": "guessed", "rank": 2, "pid": 1, "machine": "m"}\n')
        second = call_leader(store, 2)
        wait()
        assert [peer.identity for peer in found] == [Identity.own(1), Identity.own(2)]
        assert first.identity == second.identity == Identity.own(0)
        for connection in (stranger, first.connection, second.connection):
            connection.close()


def test_a_stranger_who_says_nothing_holds_up_no_rank_and_none_is_taken_twice():
    with receiving(3) as (store, found, wait):
        first = call_leader(store, 1)
        silent = [socket.create_connection(first.connection.getpeername()) for _ in range(8)]
        again = call_leader(store, 1)
        second = call_leader(store, 2)
        wait()
        assert [peer.identity.rank for peer in found] == [1, 2]
        for connection in (*silent, first.connection, again.connection, second.connection):
            connection.close()


def test_on_one_machine_rank_0_listens_on_the_loopback_address_alone():
    with receiving(2) as (store, _, wait):
        port = json.loads(store.get(KEY))["port"]
        # Any interface has this address too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        call_leader(store, 1).connection.close()
        wait()
