"""The stream to the drafter: tokens out, drafts in. Whatever it does, it costs no token and little time."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import grpc
import structlog

from outrider import token_hash
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.scheduler.answer_time import AnswerTime
from services.scheduler.sequence import Draft, FinishReason, Sequence

RETRY_SECONDS = 1.0
# A drafter that owes an answer for longer is left, and met again with a clean slate.
MAX_ANSWER_SECONDS = 10.0
# Closed sequences wait for a message; more of them than this mean that nothing is being sent.
MAX_NUM_CLOSED = 4096
# Drafts kept per sequence: one per likely outcome.
MAX_NUM_KEPT = 32

_SOURCES = {
    pb.DRAFT_SOURCE_SUFFIX: "suffix",
    pb.DRAFT_SOURCE_MODEL: "model",
    pb.DRAFT_SOURCE_HEAD: "head",
    pb.DRAFT_SOURCE_GRAMMAR: "grammar",
}

log = structlog.get_logger()
Key = tuple[int, int]  # length and hash of the tokens that a draft follows


class Drafts:
    """Tells the drafter what became final, and keeps its drafts until a sequence has reached their base.

    The drafter knows of a sequence from the first draft that is wanted for it; what it has not been told
    since goes with the next message.
    """

    def __init__(self, channel: grpc.aio.Channel, answer_time: AnswerTime, *, max_draft_tokens: int) -> None:
        self._channel = channel
        self._stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        self._answer_time = answer_time
        self._max_draft_tokens = max_draft_tokens
        self.vocab_size = 0
        self.is_connected = False
        self._forget()

    async def run(self) -> None:
        """Keeps a stream open for ever."""
        while True:
            try:
                await self._channel.channel_ready()
                await self._serve()
            except* Exception as errors:  # Nothing that a drafter does may reach the steps.
                log.warning("drafter_lost", reason=repr(errors.exceptions[0])[:200])
            finally:
                self._forget()
            await asyncio.sleep(RETRY_SECONDS)

    async def collect(self, sequences: Iterable[Sequence], step_seconds: float) -> None:
        """Asks for drafts and gives sequences those that are there, or come soon enough.

        There is no waiting for a drafter that has not yet answered an earlier question.
        """
        wanting = [sequence for sequence in sequences if sequence.wants_draft]
        if not self.is_connected or not wanting:
            return
        was_idle = not self._asked_at
        # Past two open questions the drafter lags; what it missed goes with a later one.
        if len(self._asked_at) < 2:
            self._ask(wanting)
        missing = [sequence for sequence in wanting if not self._give(sequence)]
        deadline = self._answer_time.deadline(step_seconds)
        if missing and was_idle and deadline > 0:
            await self._wait_for_answer(deadline)
            for sequence in missing:
                self._give(sequence)

    def close(self, sequence: Sequence) -> None:
        """Tells the drafter that a sequence has ended, with its last tokens."""
        if sequence.id in self._told:
            self._tell(sequence)
            finished = sequence.end in (FinishReason.STOP, FinishReason.LENGTH)
            self._message.closed.add(sequence_id=sequence.id, finished=finished)
            del self._told[sequence.id]
            self._kept.pop(sequence.id, None)
            if len(self._message.closed) > MAX_NUM_CLOSED:
                self._overdue.set()
            self._unsent.set()

    def _forget(self) -> None:
        self.is_connected = False
        self._told: dict[int, int] = {}  # sequence id -> tokens that the drafter knows
        self._kept: dict[int, dict[Key, Draft]] = {}
        self._asked_at: deque[float] = deque()
        self._message = pb.ProposeRequest()
        self._unsent = asyncio.Event()
        self._answered = asyncio.Event()
        self._overdue = asyncio.Event()

    async def _serve(self) -> None:
        call = self._stub.Propose()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(call))
                tasks.create_task(self._read(call))
                tasks.create_task(self._watch())
                self.is_connected = True
        finally:
            call.cancel()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await self._unsent.wait()
            self._unsent.clear()
            message, self._message = self._message, pb.ProposeRequest()
            await call.write(message)

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        async for response in call:
            if self._asked_at:
                self._answer_time.add(time.monotonic() - self._asked_at.popleft())
            for message in response.drafts:
                self._keep(message)
            self._answered.set()
        raise asyncio.InvalidStateError("the drafter ended the stream")

    async def _watch(self) -> None:
        """Raises TimeoutError when the drafter has fallen silent."""
        while not self._overdue.is_set():
            if self._asked_at and time.monotonic() - self._asked_at[0] > MAX_ANSWER_SECONDS:
                break
            await asyncio.sleep(MAX_ANSWER_SECONDS / 10)
        raise TimeoutError("the drafter does not answer")

    def _ask(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._tell(sequence)
            self._message.wanted.add(
                sequence_id=sequence.id,
                base_length=sequence.num_tokens,
                max_num_tokens=sequence.num_useful_draft_tokens,
            )
        self._asked_at.append(time.monotonic())
        self._unsent.set()

    def _tell(self, sequence: Sequence) -> None:
        num_told = self._told.get(sequence.id)
        if num_told is None:
            opened = self._message.opened.add(
                sequence_id=sequence.id,
                tenant=sequence.tenant,
                token_ids=sequence.token_ids,
                num_prompt_tokens=sequence.num_prompt_tokens,
                traceparent=sequence.trace.traceparent,
            )
            opened.params.CopyFrom(sequence.params)
        elif num_told < sequence.num_tokens:
            self._message.committed.add(
                sequence_id=sequence.id, offset=num_told, token_ids=sequence.token_ids[num_told:]
            )
        self._told[sequence.id] = sequence.num_tokens

    def _keep(self, message: pb.Draft) -> None:
        """Keeps a draft that could be used; one of an ended sequence or out of bounds is dropped."""
        token_ids = tuple(message.token_ids)
        if message.sequence_id not in self._told or not 0 < len(token_ids) <= self._max_draft_tokens:
            return
        if max(token_ids) >= self.vocab_size:
            return
        kept = self._kept.setdefault(message.sequence_id, {})
        source = _SOURCES.get(message.source, "unspecified")
        kept[message.base_length, message.base_hash] = Draft(
            base_length=message.base_length, token_ids=token_ids, source=source
        )
        if len(kept) > MAX_NUM_KEPT:
            del kept[next(iter(kept))]

    def _give(self, sequence: Sequence) -> bool:
        kept = self._kept.get(sequence.id)
        if kept:
            fitting = [rest for key, draft in kept.items() if (rest := _rest(draft, key[1], sequence))]
            sequence.draft = max(fitting, key=lambda draft: len(draft.token_ids), default=None)
            for key in [key for key in kept if key[0] <= sequence.num_tokens]:
                del kept[key]
        return sequence.draft is not None

    async def _wait_for_answer(self, seconds: float) -> None:
        self._answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()


def _rest(draft: Draft, base_hash: int, sequence: Sequence) -> Draft | None:
    """Returns what of a draft follows the sequence as it is now; None if its tokens turned out otherwise.

    A draft that comes a step late is as good as ever in its later tokens, if the earlier ones were right: so
    a drafter slower than a step still helps, and nothing waits for it.
    """
    num_past = sequence.num_tokens - draft.base_length
    if not 0 <= num_past < len(draft.token_ids):
        return None
    if token_hash.extend(base_hash, draft.token_ids[:num_past]) != sequence.token_hash:
        return None
    return replace(draft, base_length=sequence.num_tokens, token_ids=draft.token_ids[num_past:])
