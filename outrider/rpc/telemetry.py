"""Logs as JSON lines and traces by OpenTelemetry; neither ever holds prompts or outputs."""

import logging
import os
import sys
from collections.abc import MutableMapping
from importlib.metadata import version
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def configure_logging(service: str) -> None:
    """Sends structlog's and the standard library's records to stderr, one JSON object a line."""

    def add_service(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        add_service,
        _add_trace_ids,
        structlog.processors.format_exc_info,
    ]
    level = logging.getLevelNamesMapping().get(
        os.environ.get("OUTRIDER_LOG_LEVEL", "INFO").upper(), logging.INFO
    )
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for each line: other processes may write to the same file.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Its starts and stops are our own.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))


def _add_trace_ids(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = trace.format_trace_id(span.trace_id)
        event["span_id"] = trace.format_span_id(span.span_id)
    return event


def configure_tracing(service: str) -> TracerProvider:
    """Makes the process's tracer provider; spans leave it only if OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    name = os.environ.get("OTEL_SERVICE_NAME", f"outrider-{service}")
    resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version("outrider")})
    provider = TracerProvider(resource=resource)
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        # Imported here: it takes a quarter of a second that most starts need not spend.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def tracer(name: str) -> trace.Tracer:
    """Returns the tracer of a module."""
    return trace.get_tracer(name)


def context_from(traceparent: str) -> Context:
    """Returns the context that a W3C traceparent names; an empty or malformed one gives an empty context."""
    return _PROPAGATOR.extract({"traceparent": traceparent}, context=Context())


def traceparent_of(span: trace.Span) -> str:
    """Returns a span's W3C traceparent, to travel inside a stream's message; empty if it records nothing."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")
