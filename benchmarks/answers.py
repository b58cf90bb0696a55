"""How benchmarks ask a gateway, and what they note of the answers: when tokens came, how many per step."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider import AsyncClient
from outrider.client import Answer, AsyncStream, Tool
from outrider.client.question import Messages


class Ask(Protocol):
    """One way to have a conversation answered."""

    async def __call__(
        self,
        messages: Messages,
        *,
        tools: Sequence[Tool] = ...,
        thinking: bool = ...,
        **options: object,
    ) -> Answer:
        """Returns the whole answer."""
        ...


@dataclass(slots=True)
class Meter:
    """Notes the events of one stream after another: when each came and how many tokens it brought."""

    events: list[tuple[float, int]] = field(default_factory=list)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, stream: AsyncStream) -> Answer:
        """Reads an answer to its end; a stream that is not wanted any more is cancelled."""
        async with stream:
            async for delta in stream:
                self.events.append((time.perf_counter(), len(delta.token_ids)))
                self.has_begun.set()
            return await stream.result()


def asker(client: AsyncClient, meter: Meter, **always: object) -> Ask:
    """Returns a way to ask `client`, always with these options; what answers bring is noted in `meter`."""

    async def ask(
        messages: Messages,
        *,
        tools: Sequence[Tool] = (),
        thinking: bool = True,
        **options: object,
    ) -> Answer:
        merged = {**always, **options}
        stream = client.chat(messages, tools=tools, thinking=thinking, **merged)  # type: ignore[arg-type]
        return await meter.read(stream)

    return ask


def tokens_per_step(answers: Iterable[Answer]) -> float:
    """Returns output tokens per step that a sequence took part in."""
    answers = list(answers)
    return sum(a.usage.completion_tokens for a in answers) / sum(a.stats.num_steps for a in answers)


def accepted_per_step(answers: Iterable[Answer]) -> float:
    """Returns accepted draft tokens per step that a sequence took part in."""
    answers = list(answers)
    return sum(a.stats.num_accepted_tokens for a in answers) / sum(a.stats.num_steps for a in answers)


def decoding_rate(answers: Iterable[Answer]) -> float:
    """Returns tokens per second of decoding alone: from the first event of each answer to its last."""
    answers = [a for a in answers if a.stats.tokens_per_second]
    seconds = sum(_num_later(a) / a.stats.tokens_per_second for a in answers)
    return sum(map(_num_later, answers)) / seconds


def _num_later(answer: Answer) -> int:
    return answer.usage.completion_tokens - 1
