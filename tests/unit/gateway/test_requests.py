"""Requests resolved against the tiny model."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument, Unimplemented
from outrider.v1 import gateway_pb2 as pb
from services.gateway.answer import _NUM_TOKENS_AT_ONCE, _Reader
from services.gateway.auth import Tenant
from services.gateway.config import Limits
from services.gateway.grammar_checker import GrammarChecker
from services.gateway.messages import GenerateRequest
from services.gateway.outlook import Group
from services.gateway.requests import Caller, RequestReader
from services.gateway.text_model import TextModel

MODEL = Path(__file__).parents[3] / "models" / "tiny"
CALLER = Caller(tenant=Tenant(name="t"), received=0.0, deadline=None, traceparent="")
GROUP = Group(model="tiny", numerics_id="n", max_model_len=100_000, vocab_size=800, block_size=16)


@pytest.fixture(scope="module")
def model() -> TextModel:
    return TextModel.load(MODEL, name="tiny")


def reader(model: TextModel) -> RequestReader:
    checker = GrammarChecker(max_num_bytes=100, max_seconds=5.0)
    return RequestReader(model, defaults={}, limits=Limits(), checker=checker, constrain_tools=True)


def asked(**options) -> GenerateRequest:
    return GenerateRequest.from_proto(pb.GenerateRequest(text="a", options=pb.GenerationOptions(**options)))


async def test_grammars_are_refused_for_a_model_whose_workers_take_none(model):
    request = asked()
    grammar = Grammar(language="regex", text="a")
    request = dataclasses.replace(request, options=dataclasses.replace(request.options, grammar=grammar))
    with pytest.raises(Unimplemented) as caught:
        await reader(dataclasses.replace(model, takes_grammars=False)).read_generate(request, CALLER, GROUP)
    assert caught.value.field == "options.grammar"


async def test_strings_that_come_to_too_many_tokens_are_named_as_the_client_named_them(model):
    with pytest.raises(InvalidArgument) as caught:
        await reader(model).read_generate(asked(bad_words=["1" * 256]), CALLER, GROUP)
    assert caught.value.field == "options.bad_words"


async def test_other_requests_go_on_while_resumed_tokens_are_read(model):
    resume = pb.Resume(token_ids=[5] * (10 * _NUM_TOKENS_AT_ONCE))
    request = await reader(model).read_generate(asked(resume=resume), CALLER, GROUP)
    turns = []

    async def take_turns() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await _Reader(request).replay()
    other.cancel()
    assert len(turns) >= 10
