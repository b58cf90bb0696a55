"""What an operator sees: one trace per request through all services, and the metrics of each."""

import re
from collections.abc import Iterator
from concurrent import futures

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from outrider import Client
from tests.stack import running_stack

SERVICES = ("gateway", "scheduler", "worker", "drafter")
QUESTION = "What is 4785 + 2467?"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans it receives, by service."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []

    def Export(  # noqa: N802
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(attributes["service.name"], span) for span in scope.spans]
        return pb.ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None)


def scrape(address: str) -> dict[str, float]:
    """Returns the samples of a Prometheus page, summed over labels."""
    samples: dict[str, float] = {}
    for line in httpx.get(f"http://{address}/metrics").text.splitlines():
        if match := re.match(r"(outrider_\w+)(?:\{.*\})? (\S+)$", line):
            samples[match[1]] = samples.get(match[1], 0) + float(match[2])
    return samples


def test_one_trace_runs_through_all_four_services_and_names_no_text(collector: tuple[Collector, str]) -> None:
    received, endpoint = collector
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    with running_stack(environment=exporting) as stack, Client(stack.target) as client:
        client.chat(QUESTION, max_tokens=20, temperature=0).result()
    roots = [
        span for service, span in received.spans if service == "outrider-gateway" and not span.parent_span_id
    ]
    assert [span.name for span in roots] == ["outrider.v1.GatewayService/Chat"]
    spans = [(service, span) for service, span in received.spans if span.trace_id == roots[0].trace_id]
    assert {service for service, _ in spans} == {f"outrider-{service}" for service in SERVICES}
    ids = {span.span_id for _, span in spans}
    assert all(span.parent_span_id in ids for _, span in spans if span.span_id != roots[0].span_id)
    assert b"4785" not in b"".join(span.SerializeToString() for _, span in spans)


def test_every_service_counts_its_work_under_the_names_dashboards_know() -> None:
    with running_stack() as stack, Client(stack.target) as client:
        answer = client.chat(QUESTION, max_tokens=20, temperature=0).result()
        scheduler = scrape(stack.metrics_address("scheduler"))
        gateway = scrape(stack.http.removeprefix("http://"))
        assert httpx.get(f"{stack.http}/healthz").status_code == 200
        others = [scrape(stack.metrics_address(service)) for service in ("worker", "drafter")]
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert scheduler[f"outrider_{name}"] == 0
    for name, value in (
        ("spec_decode_num_draft_tokens_total", answer.stats.num_draft_tokens),
        ("spec_decode_num_accepted_tokens_total", answer.stats.num_accepted_tokens),
        ("prefix_cache_queries_total", answer.usage.prompt_tokens),
        ("num_preemptions_total", 0),
    ):
        assert scheduler[f"outrider_{name}"] == value
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert gateway[f"outrider_{name}_count"] == 1
    assert gateway["outrider_inter_token_latency_seconds_count"] > 0
    assert all(samples for samples in others)
