"""The gateway in front of the real services, on the tiny model: what it asks of them holds."""

import json

import grpc
import pytest

from outrider.v1 import gateway_pb2 as gw
from outrider.v1 import gateway_pb2_grpc, sampling_pb2
from tests.integration.gateway_peers import TOKENIZER, chat, collect

THINK_END = TOKENIZER.encode("</think>")[0]
SECTION_BEGIN = TOKENIZER.encode("<|tool_calls_section_begin|>")[0]
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["count"],
    "additionalProperties": False,
}


@pytest.fixture
async def stub(stack):
    async with grpc.aio.insecure_channel(stack.target) as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def options(*, seed=7, stop=(), grammar=None, resume=None, disabled=False, **sampling):
    """Returns options that sample, so that the text does not depend on the weights being trained."""
    return gw.GenerationOptions(
        sampling=sampling_pb2.SamplingParams(**{"temperature": 1.0, "max_tokens": 60} | sampling),
        seed=seed,
        stop=stop,
        grammar=grammar,
        resume=resume,
        speculation=sampling_pb2.Speculation(disabled=disabled),
    )


def generate(**fields) -> gw.GenerateRequest:
    """Returns a request that ends at its limit of tokens only."""
    return gw.GenerateRequest(text="Once upon a time", options=options(**{"ignore_eos": True} | fields))


async def test_the_same_seed_gives_the_same_answer_with_drafts_or_without(stub):
    first = await collect(stub.Generate(generate()))
    again = await collect(stub.Generate(generate(disabled=True)))
    assert first.token_ids == again.token_ids
    assert (len(first.token_ids), first.text) == (60, again.text)
    assert first.finished.usage.completion_tokens == again.finished.usage.completion_tokens == 60


async def test_a_stop_string_ends_text_tokens_and_usage_alike(stub):
    whole = (await collect(stub.Generate(generate()))).text
    stop = whole[20:26]
    answer = await collect(stub.Generate(generate(stop=[stop])))
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finished.stop_string == stop
    assert answer.finished.usage.completion_tokens == len(answer.token_ids)


async def test_thinking_is_closed_at_its_limit(stub):
    request = chat(options=options(max_reasoning_tokens=5, logit_bias={THINK_END: -1000}))
    answer = await collect(stub.Chat(request))
    assert (answer.token_ids[5], answer.finished.usage.reasoning_tokens) == (THINK_END, 5)


async def test_an_answer_conforms_to_its_schema(stub):
    grammar = sampling_pb2.Grammar(json_schema=json.dumps(SCHEMA))
    for thinking in (True, False):
        bias = {THINK_END: 1000} if thinking else {}
        answer = await collect(
            stub.Chat(chat(thinking=thinking, options=options(grammar=grammar, logit_bias=bias)))
        )
        assert 0 <= json.loads(answer.text)["count"] <= 99
        assert answer.finished.reason == gw.FINISH_REASON_STOP


async def test_the_arguments_of_tool_calls_conform_to_their_schema(stub):
    tools = [
        gw.Tool(name=name, parameters_json_schema=json.dumps(SCHEMA))
        for name in ("count_apples", "count_pears")
    ]
    bias = {THINK_END: 500, SECTION_BEGIN: 500}
    request = chat(tools=tools, options=options(logit_bias=bias, max_tokens=500))
    answer = await collect(stub.Chat(request))
    calls: dict[int, dict[str, str]] = {}
    for piece in (piece for delta in answer.deltas for piece in delta.tool_calls):
        call = calls.setdefault(piece.index, {"name": piece.name, "arguments": ""})
        call["arguments"] += piece.arguments
    assert calls
    finished = answer.finished.reason == gw.FINISH_REASON_TOOL_CALLS
    for call in list(calls.values()) if finished else list(calls.values())[:-1]:
        assert call["name"] in ("count_apples", "count_pears")
        assert 0 <= json.loads(call["arguments"])["count"] <= 99


async def test_a_deadline_ends_a_request_and_the_next_is_answered(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub.Generate(generate(max_tokens=4000), timeout=0.3))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert len((await collect(stub.Generate(generate()))).token_ids) == 60
