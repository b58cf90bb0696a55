"""One answer so far, and how to ask for the rest of it: what the two clients share."""

import random
import time

import grpc

from outrider.client.answer import Answer, Delta, gather
from outrider.client.status import error_of
from outrider.rpc.errors import Cancelled, DeadlineExceeded, FailedPrecondition, Internal
from outrider.v1 import gateway_pb2 as pb

FIRST_PAUSE_SECONDS = 0.1
# A gateway is back within seconds, and the answer stands still until the next try.
LONGEST_PAUSE_SECONDS = 0.5
# In a row, without news: about 7 s for a gateway that never answered, about a minute for one that did.
MAX_NUM_FIRST_ATTEMPTS = 17
MAX_NUM_ATTEMPTS = 130
# From the first of them to the last: a gateway may take half a minute over each.
MAX_ATTEMPT_SECONDS = 120.0


class Transcript:
    """Gathers the events of one answer over as many streams as it takes.

    A stream that breaks is taken up with the tokens already received; the gateway sends only what is new.
    """

    def __init__(self, question: pb.GenerateRequest | pb.ChatRequest, timeout: float | None) -> None:
        self._question = question
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._deltas: list[Delta] = []
        self._num_tokens = 0
        self._num_attempts = 0
        self._is_cancelled = False
        self._first_attempt = 0.0
        self.started: pb.Started | None = None
        self.finished: pb.Finished | None = None

    def request(self) -> pb.GenerateRequest | pb.ChatRequest:
        """Returns the request for what is missing; raises Cancelled if nobody wants it any more."""
        if self._is_cancelled:
            raise Cancelled("the request was cancelled")
        request = type(self._question)()
        request.CopyFrom(self._question)  # type: ignore[arg-type]
        if self.started is not None:
            request.options.request_id = self.started.request_id
            request.options.seed = self.started.seed
        if self.started is not None and self._num_tokens:
            resume = request.options.resume
            resume.token_ids.extend(token_id for delta in self._deltas for token_id in delta.token_ids)
            resume.seed, resume.request_id = self.started.seed, self.started.request_id
            resume.numerics_id = self.started.numerics_id
        return request

    def cancel(self) -> None:
        """Has nothing more asked, also where a client pauses before it asks again."""
        self._is_cancelled = True

    def time_left(self) -> float | None:
        """Returns the seconds until the deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def receive(self, response: pb.GenerateResponse | pb.ChatResponse) -> Delta | None:
        """Takes in one event; returns its delta if it is one."""
        self._num_attempts = 0
        event = response.WhichOneof("event")
        if event == "started":
            self._start(response.started)
        elif event == "finished":
            self.finished = response.finished
        elif event == "delta":
            if response.delta.offset != self._num_tokens:
                raise Internal(f"delta begins at token {response.delta.offset}, not {self._num_tokens}")
            delta = Delta.from_proto(response.delta)
            self._num_tokens += len(delta.token_ids)
            self._deltas.append(delta)
            return delta
        return None

    def _start(self, started: pb.Started) -> None:
        """Keeps the last start before the first token: later ones must compute in the same way."""
        if self.started is None or not self._num_tokens:
            self.started = started
        elif started.numerics_id != self.started.numerics_id:
            raise FailedPrecondition(
                "the answer broke off and cannot be continued exactly: "
                f"its numerics id was {self.started.numerics_id} and is now {started.numerics_id}"
            )

    def pause_after(self, error: grpc.RpcError) -> float:
        """Returns the seconds to wait before asking for the rest; raises the domain error if it is final."""
        failure = error_of(error)
        limit = MAX_NUM_FIRST_ATTEMPTS if self.started is None else MAX_NUM_ATTEMPTS
        if not self._num_attempts:
            self._first_attempt = time.monotonic()
        self._num_attempts += 1
        exhausted = time.monotonic() - self._first_attempt > MAX_ATTEMPT_SECONDS
        if failure.code is not grpc.StatusCode.UNAVAILABLE or self._num_attempts >= limit or exhausted:
            raise failure from None
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (self._num_attempts - 1), LONGEST_PAUSE_SECONDS)
        left = self.time_left()
        if left == 0:
            raise DeadlineExceeded(f"the deadline has passed; the last attempt failed: {failure}") from None
        return pause * random.uniform(0.8, 1.0) if left is None else min(pause, left)

    def answer(self) -> Answer:
        """Returns the whole answer of a stream that ended."""
        if self.started is None or self.finished is None:
            raise Internal("the stream ended before the answer did")
        return gather(self._deltas, self.started, self.finished)
