"""A worker on a small random model, in this process, and the scheduler's side of its stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from outrider.params import SamplingParams, SequenceParams
from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import worker_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, SequenceStart, SequenceStep
from services.worker.service import SERVICE, WorkerServicer, load_and_serve
from services.worker.step import Stepper
from tests.unit.model.random_models import VOCAB_SIZE, deepseek_config, write_checkpoint

BLOCK_SIZE = 4
NUM_BLOCKS = 200
END_TOKEN = 95


def write_model(directory: Path) -> Path:
    """Writes a mixture-of-experts model with a tokenizer of one token per character."""
    write_checkpoint(directory, deepseek_config())
    vocab = {chr(33 + index): index for index in range(90)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    tokenizer |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": byte_level, "decoder": byte_level}
    tokenizer["model"] = {"type": "BPE", "vocab": vocab, "merges": []}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def config_of(model_dir: Path, **changes: Any) -> Config:
    """Returns a configuration for a small cache on free ports."""
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    values: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "num_threads": 1}
    values |= {"max_num_batched_tokens": 128} | changes
    return Config(listen=listen, model_dir=model_dir, **values)


def load_stepper(model_dir: Path, **changes: Any) -> Stepper:
    """Loads a group without a server."""
    return load(config_of(model_dir, **changes), lambda: False)


@dataclass(slots=True)
class Scheduled:
    """What a scheduler knows of a sequence, and the steps it asks for."""

    id: int
    params: SequenceParams
    tokens: list[int]
    num_prompt_tokens: int
    blocks: list[int]
    num_computed: int = 0
    num_blocks_sent: int = 0
    is_started: bool = False
    logprobs: list[Any] = field(default_factory=list)

    def step(
        self, *, max_rows: int = 10**6, draft: Iterable[int] = (), wants_features: bool = False
    ) -> SequenceStep:
        """Returns the next step; the draft goes with it if all known tokens are computed."""
        num_new = min(len(self.tokens) - self.num_computed, max_rows)
        draft = list(draft) if self.num_computed + num_new == len(self.tokens) else []
        num_blocks = -(-(self.num_computed + num_new + len(draft)) // BLOCK_SIZE)
        new_blocks = self.blocks[self.num_blocks_sent : num_blocks]
        start = None
        if not self.is_started:
            start = SequenceStart(
                token_ids=list(self.tokens),
                num_prompt_tokens=self.num_prompt_tokens,
                params=self.params.to_proto(),
            )
        self.is_started, self.num_blocks_sent = True, max(num_blocks, self.num_blocks_sent)
        return SequenceStep(
            sequence_id=self.id,
            start=start,
            num_computed_tokens=self.num_computed,
            num_new_tokens=num_new,
            draft_token_ids=draft,
            new_block_ids=new_blocks,
            wants_features=wants_features,
        )

    def commit(self, step: SequenceStep, output: Any) -> None:
        """Takes the answer to a step; `output` is None if no token was chosen."""
        self.num_computed += step.num_new_tokens
        if output is not None:
            self.num_computed += output.num_accepted_tokens
            self.tokens += output.token_ids
            self.logprobs += output.logprobs or ()

    @property
    def output(self) -> list[int]:
        """The tokens chosen."""
        return self.tokens[self.num_prompt_tokens :]


def scheduled(
    index: int,
    prompt: list[int],
    *,
    seed: int = 0,
    output: Iterable[int] = (),
    params: SequenceParams | None = None,
    **sampling: Any,
) -> Scheduled:
    """Returns a sequence with blocks of its own, never those of another index below 8."""
    params = params or SequenceParams(sampling=SamplingParams(**sampling), seed=seed)
    blocks = list(range(index, NUM_BLOCKS, 8))
    return Scheduled(index, params, [*prompt, *output], len(prompt), blocks)


def prompt_of(index: int, length: int) -> list[int]:
    """Returns a prompt that differs by index."""
    return [(7 * index + 5 * place + place * place) % (VOCAB_SIZE - 2) for place in range(length)]


def to_proto(batch: Batch) -> pb.Batch:
    """Writes what the scheduler would."""
    message = pb.Batch(step_id=batch.step_id, released_sequence_ids=batch.released_sequence_ids)
    for step in batch.steps:
        item = message.sequences.add(
            sequence_id=step.sequence_id,
            num_computed_tokens=step.num_computed_tokens,
            num_new_tokens=step.num_new_tokens,
            draft_token_ids=step.draft_token_ids,
            new_block_ids=step.new_block_ids,
            wants_features=step.wants_features,
        )
        if step.start is not None:
            item.start.token_ids.extend(step.start.token_ids)
            item.start.num_prompt_tokens = step.start.num_prompt_tokens
            item.start.params.CopyFrom(step.start.params)
            item.start.traceparent = step.start.traceparent
    return message


class Stream:
    """The scheduler's stream of one session."""

    def __init__(self, channel: grpc.aio.Channel, session: int) -> None:
        self.session = session
        self.epoch = 0
        self.call: Any = worker_pb2_grpc.WorkerServiceStub(channel).Step()

    async def ask(self, **request: Any) -> pb.StepResponse:
        """Sends one message and returns the answer; raises the RpcError of a refusal."""
        values: dict[str, Any] = {"session": self.session, "epoch": self.epoch} | request
        await self.call.write(pb.StepRequest(**values))
        response = await self.call.read()
        if not isinstance(response, pb.StepResponse):
            headers = (await self.call.initial_metadata(), await self.call.trailing_metadata())
            raise grpc.aio.AioRpcError(await self.call.code(), *headers, details=await self.call.details())
        return response

    async def open(self) -> pb.SessionOpened:
        """Opens the session, or takes it up again."""
        response = await self.ask(epoch=0, open=pb.OpenSession())
        self.epoch = response.epoch
        return response.opened

    async def step(
        self, step_id: int, steps: list[SequenceStep], released: Iterable[int] = ()
    ) -> pb.BatchOutput:
        """Runs a step."""
        batch = Batch(step_id=step_id, steps=steps, released_sequence_ids=list(released))
        return (await self.ask(batch=to_proto(batch))).output


@asynccontextmanager
async def running_worker(config: Config) -> AsyncIterator[grpc.aio.Channel]:
    """Runs a worker that serves, and gives a channel to it."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        async with RpcServer(config.listen, service=SERVICE) as server:
            servicer = WorkerServicer()
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.grpc)
            await server.start()
            await load_and_serve(config, server, servicer, thread, asyncio.Event())
            async with connect(f"127.0.0.1:{server.grpc_port}") as channel:
                yield channel
