"""A real scheduler on a real worker process: company, preemption and a killed worker change no token."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import sampling_pb2, scheduler_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.scheduler.config import Config
from services.scheduler.loop import Scheduler
from services.scheduler.service import SERVICE, SchedulerServicer
from tests.service_process import MODEL_DIR, ServiceProcess

BLOCK_SIZE = 8
# All three begin with two blocks, and would need twelve in the end.
NUM_BLOCKS = 8
PROMPTS = [[(seed * 31 + position * 7) % 400 for position in range(9 + 2 * seed)] for seed in range(3)]
MAX_TOKENS = 16


@asynccontextmanager
async def scheduler_on(worker: ServiceProcess) -> AsyncIterator[tuple[Scheduler, grpc.aio.Channel]]:
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    config = Config(worker=worker.address, prefill_chunk=16, group_patience_seconds=120)
    async with RpcServer(listen, service=SERVICE) as server, connect(config.worker) as to_worker:
        scheduler = Scheduler(config, worker=to_worker, drafter=None, set_serving=server.set_serving)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(scheduler), server.grpc)
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(scheduler.run())
            async with connect(f"127.0.0.1:{server.grpc_port}") as channel:
                yield scheduler, channel
            loop.cancel()


def make_submit(sequence_id: int, prompt: list[int]) -> pb.Submit:
    sampling = sampling_pb2.SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0)
    params = sampling_pb2.SequenceParams(sampling=sampling, seed=sequence_id)
    return pb.Submit(sequence_id=sequence_id, tenant="a", prompt_token_ids=prompt, params=params)


async def ask(
    channel: grpc.aio.Channel,
    prompts: dict[int, list[int]],
    *,
    kills: Callable[[], bool] = lambda: False,
    worker: ServiceProcess,
) -> dict[int, list[int]]:
    """Returns the tokens of each sequence; kills and restarts the worker each time `kills` says so."""
    call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Serve()
    await call.write(pb.ServeRequest(submits=[make_submit(*item) for item in prompts.items()]))
    tokens: dict[int, list[int]] = {sequence_id: [] for sequence_id in prompts}
    num_ended = 0
    while num_ended < len(prompts):
        response = await call.read()
        assert isinstance(response, pb.ServeResponse)
        for event in response.events:
            tokens[event.sequence_id] += event.token_ids
            num_ended += event.HasField("finished")
        if kills():
            worker.kill()
            worker.start()
    call.cancel()
    return tokens


async def test_tokens_depend_on_neither_company_preemption_nor_a_killed_worker() -> None:
    settings = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_num_batched_tokens": 32}
    with ServiceProcess("worker", model_dir=MODEL_DIR, num_threads=1, **settings) as worker:
        async with scheduler_on(worker) as (scheduler, channel):
            alone: dict[int, list[int]] = {}
            for sequence_id, prompt in enumerate(PROMPTS):
                alone |= await ask(channel, {sequence_id: prompt}, worker=worker)
            assert all(len(tokens) == MAX_TOKENS for tokens in alone.values())
            assert scheduler.counters.num_preemptions == 0
            preempted: list[int] = []

            def kills_once() -> bool:
                """The first preemption is for lack of blocks, as nothing was killed; kill then."""
                if preempted or not scheduler.counters.num_preemptions:
                    return False
                preempted.append(scheduler.counters.num_preemptions)
                return True

            together = await ask(channel, dict(enumerate(PROMPTS)), kills=kills_once, worker=worker)
            assert together == alone
            # The kill has set back what ran, too.
            assert preempted
            assert scheduler.counters.num_preemptions > preempted[0]
            scheduler.schedule.check()
