"""When a supervised process is taken to be stuck."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.processes import all_processes
from services.local.liveness import ABSENT_SECONDS, LIVENESS_SECONDS, Liveness, Sign, until_lifeless
from services.local.processes import any_stopped, family, kill_family

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def lived(*signs: Sign, is_stopped: bool = False) -> Liveness:
    life = Liveness(limit_seconds=LIVENESS_SECONDS)
    for sign in signs:
        life.take(sign, is_stopped=is_stopped)
    return life


def test_one_that_loads_is_given_all_the_time_it_takes() -> None:
    assert not lived(*[Sign.NONE] * 10_000).is_over


def test_one_that_is_stopped_while_it_loads_is_not() -> None:
    life = lived(*[Sign.NONE] * 10, is_stopped=True)
    assert not life.is_over
    for _ in range(10):
        life.take(Sign.NONE, is_stopped=True)
    assert life.is_over


def test_one_that_served_and_gives_no_good_answer_for_the_limit_is_stuck() -> None:
    assert not lived(Sign.GOOD, *[Sign.NONE] * 7).is_over
    assert lived(Sign.GOOD, *[Sign.NONE] * 8).is_over


def test_a_good_answer_begins_the_count_anew() -> None:
    assert not lived(Sign.GOOD, *[Sign.NONE] * 7, Sign.GOOD, *[Sign.NONE] * 7).is_over


def test_a_group_that_is_started_again_loads_again_but_must_come_back() -> None:
    assert not lived(Sign.GOOD, *[Sign.NOBODY] * 50, *[Sign.NONE] * 10_000).is_over
    life = lived(Sign.GOOD)
    waited = 0.0
    while not life.is_over:
        life.take(Sign.NOBODY, is_stopped=False)
        waited += life.poll_seconds
    assert ABSENT_SECONDS - 1 < waited < ABSENT_SECONDS + 1


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_one_connection_carries_the_questions_until_there_is_no_answer() -> None:
    asked: list[bytes] = []
    served = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(asked) < 4:
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.split()[1])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")
        await reader.read()
        writer.close()

    async with serving(answer) as url:
        await until_lifeless(url, os.getpid(), limit_seconds=0.5, on_serving=served.set)
    assert asked == [b"/healthz", b"/livez", b"/livez", b"/livez"]
    assert served.is_set()


def test_a_process_is_seen_stopped_and_killed_with_all_that_descend_from_it() -> None:
    program = "import subprocess; subprocess.run(['sleep', '600'])"
    parent = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    while len(members := family(parent.pid)) < 2:
        pass
    assert not any_stopped(parent.pid)
    os.kill(members[1], signal.SIGSTOP)
    while not any_stopped(parent.pid):
        pass
    kill_family(parent.pid)
    assert parent.wait(60) == -signal.SIGKILL
    while members[1] in {process.pid for process in all_processes()}:
        pass
