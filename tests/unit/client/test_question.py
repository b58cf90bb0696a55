import json
from typing import Any, cast

import pytest

from outrider.client import Message, Options, Tool, ToolCall
from outrider.client.question import chat_request, generate_request
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import gateway_pb2 as pb


def test_options_reach_the_fields_they_name() -> None:
    options = generate_request(
        "x",
        Options(
            model="m", timeout=3, temperature=0, max_tokens=5, stop=["a"], seed=0, logit_bias={3: 1.0},
            speculation=False, max_draft_tokens=2, regex="a+", request_id="r", bad_words=["no"],
        ),
    ).options  # fmt: skip
    assert (options.sampling.temperature, options.sampling.max_tokens) == (0, 5)
    assert options.sampling.HasField("temperature")
    assert options.HasField("seed")
    assert not options.sampling.HasField("top_p")
    assert dict(options.sampling.logit_bias) == {3: 1.0}
    assert (options.speculation.disabled, options.speculation.max_draft_tokens) == (True, 2)
    assert (list(options.bad_words), list(options.sampling.bad_words)) == (["no"], [])
    assert (list(options.stop), options.grammar.regex, options.request_id) == (["a"], "a+", "r")


def test_every_request_has_a_name_of_its_own() -> None:
    names = {generate_request("x", {}).options.request_id for _ in range(3)}
    assert len(names) == 3
    assert "" not in names


def test_a_prompt_of_token_ids_stays_one_also_when_it_is_empty() -> None:
    assert list(generate_request([1, 2], {}).token_ids.ids) == [1, 2]
    assert generate_request([], {}).WhichOneof("prompt") == "token_ids"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": -1}, "options.sampling.top_k"),
        ({"max_tokens": "many"}, "options.sampling.max_tokens"),
        ({"seed": 2**64}, "options.seed"),
        ({"logit_bias": {-1: 1.0}}, "options.sampling.logit_bias"),
    ],
)
def test_a_value_that_no_message_can_hold_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        generate_request("x", cast(Options, options))
    assert raised.value.field == field


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="temprature"):
        generate_request("x", cast(Options, {"temprature": 1}))


def test_turns_and_tools_may_be_written_as_openai_writes_them() -> None:
    schema = {"type": "object"}
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = chat_request(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "functions.f:0"},
        ],
        [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
        False,
        {"mode": "short"},
        {"request_id": "r"},
    )
    typed = chat_request(
        [
            Message(role="user", content="hi"),
            Message(
                role="assistant",
                reasoning="hm",
                tool_calls=[ToolCall(id="functions.f:0", name="f", arguments="{}")],
            ),
            Message(role="tool", content="3", tool_call_id="functions.f:0"),
        ],
        [Tool(name="f", description="d", parameters=json.dumps(schema))],
        False,
        {"mode": "short"},
        {"request_id": "r"},
    )
    assert plain == typed
    assert plain.messages[2].role == pb.ROLE_TOOL
    assert plain.HasField("thinking")


def test_thinking_is_left_to_the_gateway_unless_it_is_said() -> None:
    assert not chat_request("x", (), None, {}, {}).HasField("thinking")


def test_an_unknown_role_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'robot'"):
        chat_request([{"role": "robot"}], (), None, {}, {})


@pytest.mark.parametrize("name", ["stop", "bad_words", "stop_token_ids"])
def test_one_string_in_place_of_a_list_is_named(name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"options\..*{name}: must be a list"):
        generate_request("a", {name: "x"})  # type: ignore[misc]
