"""Asks a service for its health: `python -m outrider.rpc.probe HOST:PORT`; exit status 0 if it serves.

In a container, `python -m outrider.rpc.probe gateway` asks the port that OUTRIDER_GATEWAY_GRPC_PORT names.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2 as pb

from outrider.rpc.channel import ChannelTls, connect
from outrider.rpc.config import ConfigError


async def health(address: str, *, service: str, tls: ChannelTls, timeout_seconds: float) -> str:
    """Returns the name of the status, or of the error that kept it from being known."""
    async with connect(address, tls) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(pb.HealthCheckRequest(service=service), timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return pb.HealthCheckResponse.ServingStatus.Name(answer.status)


def address_of(target: str, environ: Mapping[str, str] = os.environ) -> str:
    """Returns HOST:PORT as it is, and the address of a service named by its name on this machine."""
    if ":" in target:
        return target
    variable = f"OUTRIDER_{target.upper()}_GRPC_PORT"
    if variable not in environ:
        raise ConfigError(f"{target} is no HOST:PORT, and {variable} is not set")
    return f"127.0.0.1:{environ[variable]}"


def main() -> int:
    """Prints the health and returns the exit status: 0 SERVING, 1 anything else, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m outrider.rpc.probe", description="Asks for health.")
    parser.add_argument("target", metavar="TARGET", help="HOST:PORT, or the name of a service here")
    parser.add_argument("--service", default="", help="full name, or liveness; default: the whole server")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="whom to trust; default: no TLS")
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="who we are")
    parser.add_argument("--key", type=Path, metavar="FILE")
    found = parser.parse_args()
    try:
        tls = ChannelTls(peer_tls_ca=found.ca, peer_tls_certificate=found.certificate, peer_tls_key=found.key)
        status = asyncio.run(
            health(address_of(found.target), service=found.service, tls=tls, timeout_seconds=found.timeout)
        )
    except (ValueError, ConfigError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
