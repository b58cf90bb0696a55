"""One span per sequence, from its submission to its end."""

from opentelemetry.trace import Status, StatusCode

from outrider.rpc.errors import OutriderError
from outrider.rpc.telemetry import context_from, traceparent_of, tracer
from services.scheduler.sequence import FinishReason


class Trace:
    """A sequence's span, a child of the gateway's; what the worker and the drafter do hangs below it."""

    def __init__(self, *, traceparent: str, request_id: str, num_prompt_tokens: int) -> None:
        self._span = tracer(__name__).start_span(
            "sequence",
            context=context_from(traceparent),
            attributes={"outrider.request_id": request_id, "outrider.num_prompt_tokens": num_prompt_tokens},
        )
        self.traceparent = traceparent_of(self._span)
        self._seen: set[str] = set()

    def event(self, name: str) -> None:
        """Notes that something happened."""
        self._span.add_event(name)

    def event_once(self, name: str) -> None:
        """Notes that something happened for the first time."""
        if name not in self._seen:
            self._seen.add(name)
            self._span.add_event(name)

    def finish(self, end: FinishReason | OutriderError, num_output_tokens: int) -> None:
        """Ends the span. The message of an error stays out: it may quote what the client sent."""
        self._span.set_attribute("outrider.num_output_tokens", num_output_tokens)
        if isinstance(end, OutriderError):
            self._span.set_status(Status(StatusCode.ERROR, end.code.name))
        else:
            self._span.add_event("finished", {"outrider.reason": end.value})
        self._span.end()
