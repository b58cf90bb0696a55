"""One request from its submission to its last delta."""

import asyncio
import time
from collections.abc import AsyncGenerator

import structlog

from outrider.rpc.errors import InvalidArgument
from services.gateway import metrics
from services.gateway.events import Delta, Event, Finished, SourceStatistics, Started, Statistics, Usage
from services.gateway.output.parser import OutputParser
from services.gateway.requests import Request
from services.gateway.schedulers import Schedulers
from services.gateway.sequence import End, Sequence

log = structlog.get_logger()

# Other requests wait while so many resumed tokens are read: some 15 ms.
_NUM_TOKENS_AT_ONCE = 256


async def answer(request: Request, schedulers: Schedulers) -> AsyncGenerator[Event, None]:
    """Runs a request and yields its events. Leaving it early aborts the sequence."""
    reader = _Reader(request)
    await reader.replay()
    if reader.complete:
        yield reader.started(0, request.group.numerics_id)
        yield reader.finished(Sequence(request.submission))
        return
    with schedulers.running(request.submission) as sequence:
        started = False
        while not reader.complete:
            await sequence.wait()
            # One that had all its tokens already ends without having started.
            if not started and (sequence.started or sequence.end is not None):
                started = True
                yield reader.started(sequence.num_cached_tokens, sequence.numerics_id)
            if (delta := reader.read(sequence)) is not None:
                yield delta
            if sequence.error is not None and not reader.complete:
                log.warning(
                    "request_failed",
                    request_id=request.submission.request_id,
                    status=sequence.error.code.name,
                    num_tokens=len(sequence.token_ids),
                )
                raise sequence.error
        yield reader.finished(sequence)


class _Reader:
    """Follows the tokens of one sequence through the parser."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._resumed = request.submission.resumed_token_ids
        self._num_sent = len(self._resumed)
        self._parser = OutputParser(request.output_format, num_sent=self._num_sent)
        self._first_answer_at: float | None = None
        self._end: End | None = None

    @property
    def complete(self) -> bool:
        """Returns whether the last token has been read."""
        return self._parser.stop is not None or self._end is not None

    async def replay(self) -> None:
        """Takes the resumed tokens; raises InvalidArgument if they go on after the end of the answer."""
        for i, token_id in enumerate(self._resumed):
            if i % _NUM_TOKENS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._parser.stop is not None:
                raise InvalidArgument("goes on after the end of the answer", field="options.resume.token_ids")
            self._parser.push(token_id)
        if len(self._resumed) == self._request.submission.max_tokens:
            self._end = End(reached_limit=True)
        if self.complete:
            self._parser.finish()

    def read(self, sequence: Sequence) -> Delta | None:
        """Takes the sequence's new tokens up to the end of the answer; returns what text they complete."""
        num_answer_tokens = self._parser.num_answer_tokens
        for token_id in sequence.token_ids[self._parser.num_tokens :]:
            if self._parser.stop is not None:
                break
            self._parser.push(token_id)
        if self._first_answer_at is None and self._parser.num_answer_tokens > num_answer_tokens:
            self._first_answer_at = time.monotonic()
        self._end = sequence.end
        if self.complete:
            self._parser.finish()
        begin, end, skipped = self._num_sent, self._parser.num_completed, len(self._resumed)
        if end <= begin:
            return None
        self._num_sent = end
        return Delta(
            offset=begin,
            token_ids=sequence.token_ids[begin:end],
            content=self._parser.take(),
            logprobs=sequence.logprobs[begin - skipped : end - skipped],
        )

    def started(self, num_cached_tokens: int, numerics_id: str) -> Started:
        """Returns the first event."""
        submission = self._request.submission
        return Started(
            request_id=submission.request_id,
            seed=submission.params.seed,
            model=self._request.group.model,
            numerics_id=numerics_id,
            num_prompt_tokens=len(submission.prompt_token_ids),
            num_cached_tokens=num_cached_tokens,
        )

    def finished(self, sequence: Sequence) -> Finished:
        """Returns the last event, and measures the request."""
        parser, stop = self._parser, self._parser.stop
        finished = Finished(
            reason=self._reason(),
            usage=Usage(
                prompt_tokens=len(self._request.submission.prompt_token_ids),
                cached_tokens=sequence.num_cached_tokens,
                reasoning_tokens=parser.num_reasoning_tokens,
                completion_tokens=parser.num_tokens,
            ),
            statistics=self._statistics(sequence),
            stop_string=stop.stop_string if stop else None,
            stop_token_id=stop.stop_token_id if stop else None,
        )
        self._observe(sequence)
        log.info(
            "request_finished",
            request_id=self._request.submission.request_id,
            reason=finished.reason,
            **vars(finished.usage),
        )
        return finished

    def _reason(self) -> str:
        if self._parser.stop is None and self._end is not None and self._end.reached_limit:
            return "length"
        return "tool_calls" if self._parser.num_tool_calls else "stop"

    def _since_receipt(self, moment: float | None) -> float:
        return moment - self._request.received if moment else 0.0

    def _statistics(self, sequence: Sequence) -> Statistics:
        counts = sequence.earlier + sequence.counts
        return Statistics(
            ttft_ms=1e3 * self._since_receipt(sequence.arrivals.first),
            time_to_first_answer_token_ms=1e3 * self._since_receipt(self._first_answer_at),
            tokens_per_second=sequence.arrivals.tokens_per_second,
            num_steps=counts.num_steps,
            num_preemptions=self._end.num_preemptions if self._end else 0,
            sources=tuple(
                SourceStatistics(
                    source=source, num_draft_tokens=num, num_accepted_tokens=counts.accepted[source]
                )
                for source, num in sorted(counts.drafted.items())
            ),
        )

    def _observe(self, sequence: Sequence) -> None:
        if sequence.arrivals.num_tokens:
            metrics.TIME_TO_FIRST_TOKEN.observe(self._since_receipt(sequence.arrivals.first))
        if self._first_answer_at is not None:
            metrics.TIME_TO_FIRST_ANSWER_TOKEN.observe(self._since_receipt(self._first_answer_at))
        metrics.E2E_REQUEST_LATENCY.observe(self._since_receipt(time.monotonic()))
        for kind in self._parser.anomalies:
            metrics.PARSER_ANOMALIES.labels(kind=kind).inc()
