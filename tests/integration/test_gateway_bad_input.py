"""What the gateway refuses, how it says so, and that it goes on serving."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import cast

import grpc
import pytest
from google.protobuf import struct_pb2
from google.rpc import error_details_pb2
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_status import rpc_status

from outrider.v1 import gateway_pb2 as gw
from outrider.v1 import sampling_pb2
from services.gateway.config import Limits
from tests.integration.gateway_peers import (
    MODEL,
    TOKENIZER,
    PlannedScheduler,
    chat,
    collect,
    running_gateway,
    running_scheduler,
    text_tokens,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def scheduler():
    return PlannedScheduler(lambda submit: text_tokens("</think>fine"))


@pytest.fixture
async def gateway(scheduler):
    limits = Limits(max_stop_strings=2, max_tools=3, max_messages=16, max_grammar_bytes=600)
    async with running_scheduler(scheduler) as address, running_gateway(address, limits=limits) as running:
        yield running


def options(**fields):
    return gw.GenerationOptions(**fields)


def sampled(**fields):
    return chat(options=options(sampling=sampling_pb2.SamplingParams(**fields)))


def generate(**fields):
    return gw.GenerateRequest(**fields)


def resumed(*token_ids, **fields):
    resume = gw.Resume(token_ids=token_ids, seed=1, request_id="r")
    return chat(options=options(resume=resume, **fields))


def template_options(**fields):
    struct = struct_pb2.Struct()
    struct.update(fields)
    return chat(template_options=struct)


def turn(**fields):
    return gw.ChatRequest(messages=[gw.ChatMessage(**{"role": gw.ROLE_USER, "content": "x"} | fields)])


def tool(schema="", name="f"):
    return gw.Tool(name=name, parameters_json_schema=schema)


ids = sampling_pb2.TokenIds
grammar = sampling_pb2.Grammar
CASES: dict[str, tuple[Callable, str]] = {
    "no prompt": (lambda: generate(), "prompt"),
    "an empty text": (lambda: generate(text=""), "text"),
    "no token ids": (lambda: generate(token_ids=ids()), "token_ids"),
    "a token id out of range": (lambda: generate(token_ids=ids(ids=[1, 800])), "token_ids[1]"),
    "a text too long for the context": (lambda: generate(text="a1" * 300), "text"),
    "too many token ids": (lambda: generate(token_ids=ids(ids=[1] * 512)), "token_ids"),
    "no messages": (lambda: gw.ChatRequest(), "messages"),
    "no role": (lambda: turn(role=gw.ROLE_UNSPECIFIED), "messages[0].role"),
    "an unknown role": (lambda: turn(role=77), "messages[0].role"),
    "a conversation too long": (lambda: chat("1" * 600), "messages"),
    "temperature nan": (lambda: sampled(temperature=float("nan")), "options.sampling.temperature"),
    "temperature inf": (lambda: sampled(temperature=float("inf")), "options.sampling.temperature"),
    "temperature negative": (lambda: sampled(temperature=-1), "options.sampling.temperature"),
    "top_p 0": (lambda: sampled(top_p=0), "options.sampling.top_p"),
    "top_p 2": (lambda: sampled(top_p=2), "options.sampling.top_p"),
    "min_p negative": (lambda: sampled(min_p=-0.1), "options.sampling.min_p"),
    "repetition_penalty 0": (lambda: sampled(repetition_penalty=0), "options.sampling.repetition_penalty"),
    "presence_penalty inf": (lambda: sampled(presence_penalty=1e30), "options.sampling.presence_penalty"),
    "max_tokens 0": (lambda: sampled(max_tokens=0), "options.sampling.max_tokens"),
    "min above max": (lambda: sampled(min_tokens=3, max_tokens=2), "options.sampling.min_tokens"),
    "min above the context": (lambda: sampled(min_tokens=600), "options.sampling.min_tokens"),
    "too many logprobs": (lambda: sampled(num_logprobs=21), "options.sampling.num_logprobs"),
    "a bias out of range": (lambda: sampled(logit_bias={800: 1}), "options.sampling.logit_bias"),
    "a bias of nan": (lambda: sampled(logit_bias={1: float("nan")}), "options.sampling.logit_bias"),
    "a stop token out of range": (lambda: sampled(stop_token_ids=[800]), "options.sampling.stop_token_ids"),
    "a bad word out of range": (lambda: sampled(bad_words=[ids(ids=[800])]), "options.sampling.bad_words"),
    "too many stop strings": (lambda: chat(options=options(stop=["a", "b", "c"])), "options.stop"),
    "an empty stop string": (lambda: chat(options=options(stop=["a", ""])), "options.stop[1]"),
    "a long stop string": (lambda: chat(options=options(stop=["a" * 300])), "options.stop[0]"),
    "an empty bad word": (lambda: chat(options=options(bad_words=["a", ""])), "options.bad_words[1]"),
    "a long bad word": (lambda: chat(options=options(bad_words=["a" * 257])), "options.bad_words[0]"),
    "a bad word of many tokens": (lambda: chat(options=options(bad_words=["1" * 99])), "options.bad_words"),
    "too many bad words": (lambda: chat(options=options(bad_words=["a"] * 257)), "options.bad_words"),
    "a bad word of many token ids": (
        lambda: sampled(bad_words=[ids(ids=[1] * 33)]),
        "options.sampling.bad_words",
    ),
    "too many bad token sequences": (
        lambda: sampled(bad_words=[ids(ids=[1])] * 1025),
        "options.sampling.bad_words",
    ),
    "too many biases": (
        lambda: sampled(logit_bias=dict.fromkeys(range(1025), 1)),
        "options.sampling.logit_bias",
    ),
    "too many stop tokens": (lambda: sampled(stop_token_ids=[1] * 257), "options.sampling.stop_token_ids"),
    "a long request id": (lambda: chat(options=options(request_id="r" * 200)), "options.request_id"),
    "an unknown template option": (lambda: template_options(budget=1), "template_options.budget"),
    "a template variable of the gateway": (lambda: template_options(messages=1), "template_options.messages"),
    "a tool without a name": (lambda: chat(tools=[tool(name="")]), "tools[0].name"),
    "a tool twice": (lambda: chat(tools=[tool(), tool()]), "tools[1].name"),
    "a schema that is not JSON": (lambda: chat(tools=[tool("{")]), "tools[0].parameters_json_schema"),
    "a schema that is no object": (lambda: chat(tools=[tool("[]")]), "tools[0].parameters_json_schema"),
    "a schema nested deeply": (lambda: chat(tools=[tool("[" * 9**5)]), "tools[0].parameters_json_schema"),
    "a schema with wrong properties": (
        lambda: chat(tools=[tool('{"properties": 1}')]),
        "tools[0].parameters_json_schema",
    ),
    "a schema that does not compile": (
        lambda: chat(tools=[tool(), tool('{"properties": {"a": {"type": "x"}}}', "g")]),
        "tools[1].parameters_json_schema",
    ),
    "too many tools, equal ones": (lambda: chat(tools=[tool()] * 4), "tools"),
    "a long schema": (lambda: chat(tools=[tool(" " * 700)]), "tools[0].parameters_json_schema"),
    "too many turns": (lambda: gw.ChatRequest(messages=[gw.ChatMessage()] * 17), "messages"),
    "too many tool calls": (lambda: turn(tool_calls=[gw.ToolCall()] * 17), "messages"),
    "large template options": (lambda: template_options(budget="1" * 2**16), "template_options"),
    "an invalid regex": (lambda: chat(options=options(grammar=grammar(regex="("))), "options.grammar.regex"),
    "an invalid JSON schema": (
        lambda: chat(options=options(grammar=grammar(json_schema='{"type": "x"}'))),
        "options.grammar.json_schema",
    ),
    "an invalid Lark grammar": (
        lambda: chat(options=options(grammar=grammar(lark="start: x"))),
        "options.grammar.lark",
    ),
    "a long grammar": (
        lambda: chat(options=options(grammar=grammar(regex="a" * 700))),
        "options.grammar.regex",
    ),
    "resumed ids out of range": (lambda: resumed(5, 800), "options.resume.token_ids[1]"),
    "resumed beyond max_tokens": (
        lambda: resumed(5, 6, sampling=sampling_pb2.SamplingParams(max_tokens=1)),
        "options.resume.token_ids",
    ),
    "resumed far beyond, ids out of range": (lambda: resumed(*[800] * 600), "options.resume.token_ids"),
    "resumed beyond the end": (lambda: resumed(*text_tokens("a"), 5), "options.resume.token_ids"),
    "resumed under another seed": (lambda: resumed(5, seed=2), "options.seed"),
}


async def refused(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return caught.value


def field_of(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(cast(grpc.Call, error))
    assert status is not None
    detail = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(detail)
    return detail.field_violations[0].field


async def test_bad_fields_are_named_and_nobody_else_is_harmed(gateway, scheduler):
    scheduler.flowing.clear()
    bystander = asyncio.create_task(collect(gateway.stub.Chat(chat())))
    await scheduler.until(lambda: len(scheduler.submits) == 1)
    wrong = []
    for name, (make, field) in CASES.items():
        request = make()
        method = gateway.stub.Chat if isinstance(request, gw.ChatRequest) else gateway.stub.Generate
        error = await refused(method(request))
        if (error.code(), field_of(error)) != (INVALID, field):
            wrong.append((name, error.code(), field_of(error), error.details()))
    assert wrong == []
    scheduler.flowing.set()
    assert (await bystander).text == "fine"
    assert len(scheduler.submits) == 1


async def test_an_unknown_model_is_not_found(gateway):
    error = await refused(gateway.stub.Chat(chat(model="gpt")))
    assert (error.code(), field_of(error)) == (grpc.StatusCode.NOT_FOUND, "model")


async def test_no_scheduler_is_unavailable():
    async with running_gateway("127.0.0.1:1", wait=False) as gateway:
        error = await refused(gateway.stub.Chat(chat()))
    assert error.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_scheduler_with_another_model_is_not_asked(scheduler):
    scheduler.model = "other"
    async with running_scheduler(scheduler) as address, running_gateway(address, wait=False) as gateway:
        await gateway.until_connected([True])
        await gateway.until_health(HealthCheckResponse.NOT_SERVING)
        error = await refused(gateway.stub.Chat(chat()))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert (await gateway.stub.ListModels(gw.ListModelsRequest())).models == []


async def test_keys_are_asked_for_and_name_the_tenant(scheduler, tmp_path):
    entries = [{"sha256": hashlib.sha256(b"secret").hexdigest(), "tenant": "acme", "weight": 3}]
    (tmp_path / "keys.json").write_text(json.dumps(entries))
    async with (
        running_scheduler(scheduler) as address,
        running_gateway(address, keys_file=tmp_path / "keys.json") as gateway,
    ):
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            for call in (
                gateway.stub.Chat(chat(), metadata=metadata),
                gateway.stub.Generate(generate(text="a"), metadata=metadata),
            ):
                assert (await refused(call)).code() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await gateway.stub.ListModels(gw.ListModelsRequest(), metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await collect(gateway.stub.Chat(chat(), metadata=(("authorization", "Bearer secret"),)))
    assert (scheduler.submits[0].tenant, scheduler.submits[0].tenant_weight) == ("acme", 3.0)


async def test_a_grammar_holds_after_the_thinking(gateway, scheduler):
    request = chat(options=options(grammar=grammar(json_schema='{"type": "integer"}')))
    await collect(gateway.stub.Chat(request))
    request.thinking = False
    scheduler.plan = lambda submit: text_tokens("fine")
    await collect(gateway.stub.Chat(request))
    thinking, plain = (submit.params.grammar for submit in scheduler.submits)
    assert f"<[{TOKENIZER.added_token_id('</think>')}]> answer" in thinking.lark
    assert plain.json_schema == '{"type": "integer"}'


def start(directory, **settings) -> subprocess.CompletedProcess:
    """Runs a gateway that cannot start."""
    names = {"schedulers": "127.0.0.1:1", "model_dir": str(directory), "grpc_port": "0", "http_port": "0"}
    environ = {f"OUTRIDER_GATEWAY_{name.upper()}": value for name, value in (names | settings).items()}
    return subprocess.run(
        [sys.executable, "-m", "services.gateway"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def model(tmp_path):
    """A copy of the tiny model's text files, to be spoilt."""
    for path in MODEL.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, tmp_path)
    return tmp_path


def test_a_missing_tokenizer_stops_the_start(model):
    (model / "tokenizer.json").unlink()
    result = start(model)
    assert result.returncode == 2
    assert f"{model}: neither tokenizer.json nor tiktoken.model" in result.stderr


def test_a_missing_template_stops_the_start(model):
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").unlink()
    result = start(model)
    assert (result.returncode, f"{model}: no chat_template.jinja" in result.stderr) == (2, True)


def test_a_corrupt_tokenizer_stops_the_start(model):
    (model / "tokenizer.json").write_text('{"version": "1.0"')
    result = start(model)
    assert (result.returncode, f"{model / 'tokenizer.json'}: " in result.stderr) == (2, True)
