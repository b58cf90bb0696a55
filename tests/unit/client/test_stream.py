"""What the two clients do when a stream breaks."""

from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from outrider.client.aio import AsyncStream
from outrider.client.gateways import Gateways
from outrider.client.question import generate_request
from outrider.client.sync import Stream
from outrider.client.transcript import Transcript
from outrider.v1 import gateway_pb2 as pb

EVENTS = [
    pb.GenerateResponse(started=pb.Started(request_id="r", seed=7, numerics_id="n")),
    pb.GenerateResponse(delta=pb.Delta(token_ids=[1], text="a")),
    pb.GenerateResponse(finished=pb.Finished(reason=pb.FINISH_REASON_STOP)),
]


class Gateway:
    """Breaks the stream of every answer after its end."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())
        self.num_calls = 0

    def Generate(self, request: pb.GenerateRequest, **_: object) -> Iterator[pb.GenerateResponse]:  # noqa: N802
        self.num_calls += 1
        return self._events()

    def _events(self) -> Iterator[pb.GenerateResponse]:
        yield from EVENTS
        raise self._error

    def Chat(self, request: pb.GenerateRequest, **_: object) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        self.num_calls += 1
        return self._events_async()

    async def _events_async(self) -> AsyncIterator[pb.GenerateResponse]:
        for event in EVENTS:
            yield event
        raise self._error


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_a_stream_that_breaks_after_the_end_spoils_nothing(code: grpc.StatusCode) -> None:
    gateway, transcripts = Gateway(code), [Transcript(generate_request("x", {}), None) for _ in range(2)]
    gateways = Gateways("one:1", lambda name: name, lambda channel: gateway)
    assert Stream(gateways, "Generate", transcripts[0], ()).result().text == "a"
    assert (await AsyncStream(gateways, "Chat", transcripts[1], ()).result()).text == "a"
    assert gateway.num_calls == 2
