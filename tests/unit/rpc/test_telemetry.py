import json
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from outrider.rpc.telemetry import context_from, traceparent_of

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# Logging is configured once per process, so it is tried in one of its own.
PROGRAM = f"""
import logging, structlog
from outrider.rpc.telemetry import configure_logging, configure_tracing, context_from, tracer
configure_logging("worker")
configure_tracing("worker")
with tracer("test").start_as_current_span("step", context=context_from("{PARENT}")):
    structlog.get_logger().info("loaded", num_tensors=3)
    logging.getLogger("grpc").warning("plain %s", "text")
structlog.get_logger().debug("hidden")
"""


def test_a_trace_travels_inside_a_message() -> None:
    span = TracerProvider().get_tracer("test").start_span("request", context=context_from(PARENT))
    assert span.get_span_context().trace_id == int(PARENT.split("-")[1], 16)
    inner = trace.get_current_span(context_from(traceparent_of(span))).get_span_context()
    assert (inner.trace_id, inner.span_id) == (
        span.get_span_context().trace_id,
        span.get_span_context().span_id,
    )


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-0-0-00"])
def test_a_malformed_traceparent_is_no_context(traceparent: str) -> None:
    assert not trace.get_current_span(context_from(traceparent)).get_span_context().is_valid


def test_logs_are_json_lines_with_the_trace_id_whoever_writes_them() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    ours, theirs = map(json.loads, result.stderr.splitlines())
    assert (ours["event"], ours["num_tensors"], ours["level"]) == ("loaded", 3, "info")
    assert (theirs["event"], theirs["level"]) == ("plain text", "warning")
    for record in (ours, theirs):
        assert record["service"] == "worker"
        assert record["trace_id"] == PARENT.split("-")[1]
