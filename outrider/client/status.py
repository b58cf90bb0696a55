"""Turns what gRPC raises into the domain errors that the services raise."""

from collections.abc import Iterator
from datetime import timedelta

import grpc
from google.protobuf import any_pb2, duration_pb2, empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

from outrider.rpc.errors import OutriderError, from_code

_DETAILS_KEY = "grpc-status-details-bin"


def error_of(error: grpc.RpcError) -> OutriderError:
    """Returns the error with its code, message, field and retry delay."""
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    code = error.code()
    field, retry_delay = "", None
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            field, retry_delay = _read_details(value)
    domain = from_code(code.value[0], error.details() or code.name, field=field, retry_delay=retry_delay)
    domain.code = code
    return domain


def _read_details(status: bytes) -> tuple[str, timedelta | None]:
    """Reads google.rpc.Status: the first field violation's field, and the retry delay.

    Its classes are no dependency of the client, and registering a copy of them would clash with theirs.
    """
    field, retry_delay = "", None
    for value in _messages(status, 3):
        detail = any_pb2.Any.FromString(value)
        if detail.type_url.endswith("/google.rpc.BadRequest"):
            violations = _messages(detail.value, 1)
            field = next((name.decode() for violation in violations for name in _messages(violation, 1)), "")
        elif detail.type_url.endswith("/google.rpc.RetryInfo"):
            for delay in _messages(detail.value, 1):
                retry_delay = duration_pb2.Duration.FromString(delay).ToTimedelta()
    return field, retry_delay


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    """Yields the length-delimited fields with this number: to an empty message all fields are unknown."""
    for unknown in UnknownFieldSet(empty_pb2.Empty.FromString(data)):
        if unknown.field_number == number and isinstance(unknown.data, bytes):
            yield unknown.data
