"""The stream to a drafter that takes what it is told, or does not."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.scheduler import drafter as drafter_module
from services.scheduler.drafter import Drafter
from tests.integration.scheduler_stack import serving, until
from tests.unit.scheduler.scenario import SequenceMaker


class Deaf(drafter_pb2_grpc.DrafterServiceServicer):
    """Says what sources it has, and then reads nothing."""

    async def Propose(self, request_iterator: object, context: object) -> AsyncIterator[pb.ProposeResponse]:  # noqa: N802
        yield pb.ProposeResponse(sources=[pb.DRAFT_SOURCE_SUFFIX])
        await asyncio.Event().wait()


async def test_a_drafter_that_takes_no_message_is_left_though_nothing_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafter_module, "MAX_ANSWER_SECONDS", 0.2)
    lost = asyncio.Event()
    add = lambda server: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(Deaf(), server)  # noqa: E731
    async with serving(add) as (port, _), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        drafter = Drafter(
            channel, on_answer=lambda answer: None, on_round_trip=lambda seconds: None, on_lost=lost.set
        )
        running = asyncio.create_task(drafter.run())
        await until(lambda: drafter.is_connected)
        sequence = SequenceMaker()([7], max_num_tokens=10**9)

        def tell() -> bool:
            sequence.commit([7] * 20_000)
            drafter.news.tell(sequence)
            drafter.send()
            return lost.is_set()

        await until(tell)
        running.cancel()
