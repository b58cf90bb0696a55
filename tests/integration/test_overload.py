"""More than a scheduler can take, from several gateways at once: refused at the door, or answered in full."""

import asyncio
import random

import grpc

from outrider.v1 import scheduler_pb2 as pb
from tests.integration.scheduler_stack import Client, Stack, expected, make_submit, stack

NUM_GATEWAYS = 4
NUM_WAVES = 10
# Of one gateway in one wave; resumed ones among them have more room.
NUM_NEW, NUM_RESUMED = 8, 2
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def prompt_of(gateway: int, number: int) -> list[int]:
    return [1 + gateway, number % 50, 3, *range(number % 12)]


async def flood(s: Stack, gateway: int) -> Client:
    """Submits in waves, whatever has become of those before, and reads to the end of all."""
    client, rng = Client(s.channel), random.Random(gateway)
    count = NUM_WAVES * (NUM_NEW + NUM_RESUMED)

    async def submit() -> None:
        for wave in range(NUM_WAVES):
            numbers = range(wave * (NUM_NEW + NUM_RESUMED), (wave + 1) * (NUM_NEW + NUM_RESUMED))
            submits = []
            for number in numbers:
                prompt = prompt_of(gateway, number)
                resumed = expected(prompt)[:5] if number - numbers.start < NUM_RESUMED else []
                tenant = rng.choice("abc")
                submits.append(make_submit(number, prompt, resumed=tuple(resumed), tenant=tenant))
            await client.call.write(pb.ServeRequest(submits=submits))
            await asyncio.sleep(rng.uniform(0, 0.05))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(submit())
        tasks.create_task(client.read_to_end(*range(count)))
    return client


async def test_a_flood_is_refused_with_a_time_to_come_back_and_what_is_accepted_is_answered_in_full() -> None:
    async with stack(max_num_waiting=6, max_num_seqs=4, num_blocks=24) as s:
        s.group.step_seconds = 0.002
        async with asyncio.TaskGroup() as tasks:
            floods = [tasks.create_task(flood(s, gateway)) for gateway in range(NUM_GATEWAYS)]
        num_refused = num_answered = 0
        for gateway, client in enumerate(task.result() for task in floods):
            for number, end in client.ends.items():
                if isinstance(end, pb.SequenceError):
                    num_refused += 1
                    assert end.code == RESOURCE_EXHAUSTED
                    assert end.retry_delay.ToTimedelta().total_seconds() >= 1
                    # Before it ran, never later.
                    assert number not in client.started
                    assert not client.tokens[number]
                else:
                    num_answered += 1
                    first = client.first_offset[number]
                    assert client.tokens[number] == expected(prompt_of(gateway, number))[first:]
        assert num_refused + num_answered == NUM_GATEWAYS * NUM_WAVES * (NUM_NEW + NUM_RESUMED)
        assert num_refused > 10
        assert num_answered > 10
        await s.until_idle()
