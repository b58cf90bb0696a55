"""Domain errors that carry a gRPC status; one interceptor turns them into answers."""

from datetime import timedelta

import grpc


class OutriderError(Exception):
    """An error that a caller sees as `code` with this message."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, field: str = "", retry_delay: timedelta | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_delay = retry_delay

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class InvalidArgument(OutriderError):
    """A field of the request is wrong; `field` names it."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(OutriderError):
    """The named thing does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(OutriderError):
    """A queue, cache or quota is full; `retry_delay` says when to try again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(OutriderError):
    """Not loaded, a peer is down, or the service is shutting down."""

    code = grpc.StatusCode.UNAVAILABLE


class FailedPrecondition(OutriderError):
    """The session or epoch is stale."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unauthenticated(OutriderError):
    """No key, or not a valid one."""

    code = grpc.StatusCode.UNAUTHENTICATED


class DeadlineExceeded(OutriderError):
    """The deadline has passed, or cannot be met."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(OutriderError):
    """The caller ended the request."""

    code = grpc.StatusCode.CANCELLED


class Unimplemented(OutriderError):
    """The model or this build cannot do what was asked."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(OutriderError):
    """An invariant is broken."""

    code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[grpc.StatusCode, type[OutriderError]] = {
    error.code: error
    for error in (
        InvalidArgument, NotFound, ResourceExhausted, Unavailable, FailedPrecondition,
        Unauthenticated, DeadlineExceeded, Cancelled, Unimplemented, Internal,
    )
}  # fmt: skip


def from_code(
    code: int, message: str, *, field: str = "", retry_delay: timedelta | None = None
) -> OutriderError:
    """Makes the error of a numeric status code, as carried inside streams; an unknown code is INTERNAL."""
    kind = next((error for status, error in _BY_CODE.items() if status.value[0] == code), Internal)
    return kind(message, field=field, retry_delay=retry_delay)
