"""What the gateway measures."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram

from outrider.rpc.errors import OutriderError

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.5, 1, 2)

TIME_TO_FIRST_TOKEN = Histogram(
    "outrider_time_to_first_token_seconds", "From receipt to the first output token.", buckets=_SECONDS
)
TIME_TO_FIRST_ANSWER_TOKEN = Histogram(
    "outrider_time_to_first_answer_token_seconds",
    "From receipt to the first token after the thinking.",
    buckets=_SECONDS,
)
INTER_TOKEN_LATENCY = Histogram(
    "outrider_inter_token_latency_seconds",
    "Time between two events of a request by the tokens of the second.",
    buckets=_TOKEN_SECONDS,
)
E2E_REQUEST_LATENCY = Histogram(
    "outrider_e2e_request_latency_seconds", "From receipt to the end of a request.", buckets=_SECONDS
)
REQUESTS = Counter("outrider_requests", "Requests that ended, by method and status.", ["method", "status"])
MOVES = Counter("outrider_request_moves", "Times that a request went on at another scheduler.")
PARSER_ANOMALIES = Counter(
    "outrider_parser_anomalies", "Outputs that were not as their format wants them, by kind.", ["kind"]
)


@contextmanager
def count_request(method: str) -> Iterator[None]:
    """Counts a request by the status it ends with."""
    status = "CANCELLED"
    try:
        yield
        status = "OK"
    except OutriderError as error:
        status = error.code.name
        raise
    except Exception:
        status = "INTERNAL"
        raise
    finally:
        REQUESTS.labels(method=method, status=status).inc()
