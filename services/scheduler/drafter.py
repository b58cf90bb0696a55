"""The stream to the drafter: news out, answers in. Whatever it does, it costs no token and little time."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import grpc
import structlog

from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.scheduler.drafter_answer import Answer, Bounds
from services.scheduler.news import News

RETRY_SECONDS = 1.0
# A drafter that owes an answer for longer, or takes no message, is left, and met again with a clean slate.
MAX_ANSWER_SECONDS = 10.0
# Past so many open questions the drafter lags; what it missed goes with a later one.
MAX_NUM_OPEN_QUESTIONS = 2
# Closed sequences wait for a message; more of them than this mean that nothing is being sent.
MAX_NUM_CLOSED = 4096

log = structlog.get_logger()
Call = grpc.aio.StreamStreamCall[pb.ProposeRequest, pb.ProposeResponse]


class Drafter:
    """Keeps a stream open.

    `on_answer` hears of every message, `on_round_trip` of the time to a whole answer.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        on_answer: Callable[[Answer], None],
        on_round_trip: Callable[[float], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        self._on_answer = on_answer
        self._on_round_trip = on_round_trip
        self._on_lost = on_lost
        # Before the group is known no draft can be used.
        self.bounds = Bounds(max_num_tokens=0, vocab_size=0)
        self._forget()

    def _forget(self) -> None:
        self.sources: frozenset[str] = frozenset()
        self.news = News()
        self._asked: dict[int, float] = {}  # request id -> when it was sent
        self._unsent = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether drafts are to be had: the drafter has said from which sources."""
        return bool(self.sources)

    @property
    def owes_answer(self) -> bool:
        """Whether a question is open or about to be sent."""
        return bool(self._asked) or self.news.has_questions

    @property
    def is_lagging(self) -> bool:
        """Whether so many questions are open that another would only make it worse."""
        return len(self._asked) >= MAX_NUM_OPEN_QUESTIONS

    async def run(self) -> None:
        """Keeps a stream open for ever."""
        while True:
            try:
                await self._channel.channel_ready()
                await self._serve()
            except* Exception as errors:  # Nothing that a drafter does may reach the steps.
                log.warning("drafter_lost", reason=repr(errors.exceptions[0])[:200])
            finally:
                self._answered.set()
                self._forget()
                self._on_lost()
            await asyncio.sleep(RETRY_SECONDS)

    def send(self) -> None:
        """Lets the news go, if there are any."""
        if not self.news.is_empty:
            self._answered.clear()
            self._unsent.set()

    async def wait(self, seconds: float) -> None:
        """Returns when every question is answered, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()

    async def _serve(self) -> None:
        call = self._stub.Propose()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(call))
                tasks.create_task(self._read(call))
                tasks.create_task(self._watch())
        finally:
            call.cancel()

    async def _write(self, call: Call) -> None:
        while True:
            await self._unsent.wait()
            self._unsent.clear()
            message = self.news.take()
            if message.wanted:
                self._asked[message.request_id] = time.monotonic()
            # A message without a question is not answered: that it goes says that somebody reads.
            async with asyncio.timeout(MAX_ANSWER_SECONDS):
                await call.write(message)
            if self.news.has_ended_texts:
                self._unsent.set()

    async def _read(self, call: Call) -> None:
        async for message in call:
            answer = Answer.from_proto(message, self.bounds)
            self.sources = answer.sources or self.sources
            self._on_answer(answer)
            if answer.is_complete and (asked_at := self._asked.pop(answer.request_id, None)) is not None:
                self._on_round_trip(time.monotonic() - asked_at)
            if not self.owes_answer:
                self._answered.set()
        raise asyncio.InvalidStateError("the drafter ended the stream")

    async def _watch(self) -> None:
        """Raises TimeoutError when the drafter has fallen silent."""
        while self.news.num_closed <= MAX_NUM_CLOSED:
            if self._asked and time.monotonic() - min(self._asked.values()) > MAX_ANSWER_SECONDS:
                break
            await asyncio.sleep(MAX_ANSWER_SECONDS / 10)
        raise TimeoutError("the drafter does not answer")
