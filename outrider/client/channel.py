"""How a client reaches a gateway."""

from dataclasses import dataclass
from pathlib import Path

import grpc

DEFAULT_TARGET = "127.0.0.1:50051"

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # gRPC waits 1 s growing to 120 s before it reconnects; a restarted gateway is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Despite its name this is how long an attempt may take, and the way may be long.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A gateway that is stopped, or whose machine vanished, sends no reset: a stream finds out within 5 s.
    # Where a load balancer refuses so many pings, gRPC halves their number each time, and the answer goes on.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Tried: the keepalive's own limit passes unnoticed, and this one is 60 s.
    ("grpc.http2.ping_timeout_ms", 2_000),
    # While only the gateway sends, as in an answer, gRPC pings but twice unless told otherwise.
    ("grpc.http2.max_pings_without_data", 0),
    # Long conversations pass gRPC's 4 MiB.
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # Streams are resumed with what was received, which gRPC's own retries cannot know.
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """How to trust the gateway (unset: the public authorities) and, if it asks, how to be trusted by it."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files; raises OSError naming the one that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.read_bytes() if self.ca else None,
            private_key=self.key.read_bytes() if self.key else None,
            certificate_chain=self.certificate.read_bytes() if self.certificate else None,
        )


def metadata_of(key: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that carries the key."""
    return (("authorization", f"Bearer {key}"),) if key else ()
