"""Channels from one service to another, made once and kept."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from outrider.rpc.config import ConfigError

# The start of a sequence carries all its tokens, and a new epoch sends every running sequence again.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # gRPC waits 1 s growing to 120 s before it reconnects; a restarted peer is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Despite its name this is how long an attempt may take: a busy peer needs some time to greet.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A peer that moved has another address; gRPC asks for it once in 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # A peer whose machine vanished sends no reset: find out within 5 s, also when nothing is in flight.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # Tried: the keepalive's own limit passes unnoticed, and this one is 60 s.
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's limit on received messages is 4 MiB.
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Streams are taken up again by their owners, who know what was received.
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, kw_only=True)
class ChannelTls:
    """How to trust a peer, and how to be trusted by it. Without an authority, channels are in the clear."""

    peer_tls_ca: Path | None = None
    peer_tls_certificate: Path | None = None
    peer_tls_key: Path | None = None

    def __post_init__(self) -> None:
        if (self.peer_tls_certificate is None) != (self.peer_tls_key is None):
            raise ValueError("peer_tls_certificate and peer_tls_key go together")
        if self.peer_tls_certificate is not None and self.peer_tls_ca is None:
            raise ValueError("peer_tls_certificate needs peer_tls_ca")


def connect(address: str, tls: ChannelTls | None = None) -> grpc.aio.Channel:
    """Opens a channel to HOST:PORT; it connects by itself and again after each break.

    Raises ConfigError naming a file of `tls` that cannot be read.
    """
    if tls is None or tls.peer_tls_ca is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_pem(tls.peer_tls_ca),
        private_key=read_pem(tls.peer_tls_key) if tls.peer_tls_key else None,
        certificate_chain=read_pem(tls.peer_tls_certificate) if tls.peer_tls_certificate else None,
    )
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def read_pem(path: Path) -> bytes:
    """Reads a certificate or key; raises ConfigError naming the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
