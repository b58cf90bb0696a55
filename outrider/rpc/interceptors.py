"""The edge of every call: domain errors become statuses with details, and requests become spans."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from typing import Any

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from opentelemetry import trace

from outrider.rpc.errors import Internal, OutriderError
from outrider.rpc.telemetry import context_from, tracer

# Statuses travel in headers, which both sides limit to 8 or 16 KiB in all.
MAX_MESSAGE_LENGTH = 1000
_DETAILS_KEY = "grpc-status-details-bin"

Guard = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]

log = structlog.get_logger()


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Runs every call inside a span and maps what it raises to a status."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task] = set()

    async def wait_for_calls(self, timeout_seconds: float) -> None:
        """Waits until no handler runs: a stopped server has cancelled them, but they have yet to clean up."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=timeout_seconds)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Wraps the handler that `continuation` finds."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method.lstrip("/")

        @asynccontextmanager
        async def guard(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            # A stream of requests lives as long as its peers: what it carries has spans of its own.
            with _registered(self._calls), _span(method, context, traced=not handler.request_streaming):
                try:
                    yield
                except (asyncio.CancelledError, grpc.aio.AbortError):
                    raise
                except Exception as error:
                    await _abort(context, _domain_error(error, method))

        return guarded(handler, guard)


@contextmanager
def _registered(calls: set[asyncio.Task]) -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None
    calls.add(task)
    try:
        yield
    finally:
        calls.discard(task)


def guarded(handler: grpc.RpcMethodHandler, guard: Guard) -> grpc.RpcMethodHandler:
    """Returns a handler that runs each call of `handler` inside `guard` and then closes its generator."""
    behavior = _behavior(handler)

    async def respond_once(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with guard(context):
            return await behavior(request, context)

    async def respond_often(request: Any, context: grpc.aio.ServicerContext) -> None:
        async with guard(context):
            responses = behavior(request, context)
            if inspect.isawaitable(responses):
                await responses
                return
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response)

    kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
    return getattr(grpc, f"{kind}_rpc_method_handler")(
        respond_often if handler.response_streaming else respond_once,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _behavior(handler: grpc.RpcMethodHandler) -> Callable[..., Any]:
    return getattr(handler, f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}")


@contextmanager
def _span(method: str, context: grpc.aio.ServicerContext, *, traced: bool) -> Iterator[None]:
    """Makes the call a child of the caller's span; health checks and reflection have none."""
    if not traced or not method.startswith("outrider."):
        yield
        return
    metadata = dict(context.invocation_metadata() or ())
    with tracer(__name__).start_as_current_span(
        method,
        context=context_from(str(metadata.get("traceparent", ""))),
        kind=trace.SpanKind.SERVER,
        # Messages of exceptions may quote what the client sent.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        finally:
            code = context.code() or grpc.StatusCode.OK
            span.set_attribute("rpc.grpc.status_code", code if isinstance(code, int) else code.value[0])


def _domain_error(error: Exception, method: str) -> OutriderError:
    """Returns the OutriderError that `error` is or holds; logs any other and returns a plain INTERNAL."""
    leaves = list(_leaves(error))
    unknown = [leaf for leaf in leaves if not isinstance(leaf, OutriderError)]
    if unknown:
        log.error("call_failed", method=method, exc_info=error)
        return Internal("internal error")
    found = leaves[0]
    assert isinstance(found, OutriderError)
    if isinstance(found, Internal):
        log.error("invariant_broken", method=method, exc_info=error)
    return found


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _abort(context: grpc.aio.ServicerContext, error: OutriderError) -> None:
    text = error.message[:MAX_MESSAGE_LENGTH]
    status = status_pb2.Status(code=error.code.value[0], message=text, details=[*_details(error, text)])
    metadata = ((_DETAILS_KEY, status.SerializeToString()),) if status.details else ()
    await context.abort(error.code, text, trailing_metadata=metadata)


def _details(error: OutriderError, text: str) -> Iterator[any_pb2.Any]:
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=text)
        yield _pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_delay is not None:
        delay = duration_pb2.Duration()
        delay.FromTimedelta(error.retry_delay)
        yield _pack(error_details_pb2.RetryInfo(retry_delay=delay))


def _pack(detail: message.Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
