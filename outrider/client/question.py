"""What goes out: prompts, conversations, tools and options, and the requests they make."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict, cast

from google.protobuf import message as protobuf

from outrider.client.answer import ToolCall
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import sampling_pb2

GRAMMARS = ("json_schema", "regex", "lark")
ROLES = {"system": pb.ROLE_SYSTEM, "user": pb.ROLE_USER, "assistant": pb.ROLE_ASSISTANT, "tool": pb.ROLE_TOOL}


class Options(TypedDict, total=False):
    """What `generate` and `chat` have in common; what is not given has the server's default."""

    # The model's name; a gateway with one model needs none.
    model: str
    # Seconds until the answer must be complete.
    timeout: float
    max_tokens: int
    min_tokens: int
    max_reasoning_tokens: int
    # 0 picks the most likely token.
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    num_logprobs: int
    # The same question and seed give the same tokens.
    seed: int
    choice: int
    stop: Sequence[str]
    bad_words: Sequence[str]
    # At most one of these three: what the output must conform to.
    json_schema: str | Mapping[str, Any]
    regex: str
    lark: str
    # Whether tokens may be guessed ahead; never changes them.
    speculation: bool
    max_draft_tokens: int
    request_id: str
    priority: int


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation; `role` is system, user, assistant or tool."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads a turn in the form that OpenAI's API gives it."""
        calls = mapping.get("tool_calls") or ()
        return cls(
            role=mapping.get("role", ""),
            content=mapping.get("content") or "",
            reasoning=mapping.get("reasoning") or mapping.get("reasoning_content") or "",
            tool_calls=[ToolCall(id=call.get("id", ""), **_function(call)) for call in calls],
            tool_call_id=mapping.get("tool_call_id") or "",
            name=mapping.get("name") or "",
        )

    def to_proto(self) -> pb.ChatMessage:
        """Writes a message; raises InvalidArgument for an unknown role."""
        if self.role not in ROLES:
            raise InvalidArgument(
                f"must be one of {', '.join(ROLES)}, is {self.role!r}", field="messages.role"
            )
        return pb.ChatMessage(
            role=ROLES[self.role],
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=[
                pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self.tool_calls
            ],
            tool_call_id=self.tool_call_id,
            name=self.name,
        )


def _function(call: Mapping[str, Any]) -> dict[str, str]:
    function = call.get("function", call)
    return {"name": function.get("name", ""), "arguments": _json_text(function.get("arguments", ""))}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: str | Mapping[str, Any] = ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads a tool in the form that OpenAI's API gives it."""
        function = mapping.get("function", mapping)
        return cls(
            name=function.get("name", ""),
            description=function.get("description", ""),
            parameters=function.get("parameters", ""),
        )

    def to_proto(self) -> pb.Tool:
        """Writes a message."""
        return pb.Tool(
            name=self.name,
            description=self.description,
            parameters_json_schema=_json_text(self.parameters),
        )


Messages = str | Sequence[Message | Mapping[str, Any]]
Tools = Sequence[Tool | Mapping[str, Any]]


def generate_request(prompt: str | Sequence[int], options: Options) -> pb.GenerateRequest:
    """Makes the request that continues `prompt`: text, or token ids."""
    request = pb.GenerateRequest(model=options.get("model", ""), options=_generation_options(options))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.SetInParent()
        _assign(request.token_ids, "ids", prompt, "token_ids")
    return request


def chat_request(
    messages: Messages,
    tools: Tools,
    thinking: bool | None,
    template_options: Mapping[str, Any],
    options: Options,
) -> pb.ChatRequest:
    """Makes the request that answers a conversation; a string is one user's turn."""
    turns = [Message(role="user", content=messages)] if isinstance(messages, str) else messages
    request = pb.ChatRequest(
        model=options.get("model", ""),
        messages=[
            (turn if isinstance(turn, Message) else Message.from_mapping(turn)).to_proto() for turn in turns
        ],
        tools=[(tool if isinstance(tool, Tool) else Tool.from_mapping(tool)).to_proto() for tool in tools],
        options=_generation_options(options),
    )
    if thinking is not None:
        request.thinking = thinking
    if template_options:
        request.template_options.update(template_options)
    return request


def _generation_options(options: Options) -> pb.GenerationOptions:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    message = pb.GenerationOptions()
    for name, value in cast(dict[str, Any], options).items():
        if value is None:
            continue
        if name in GRAMMARS:
            _assign(message.grammar, name, _json_text(value), f"options.grammar.{name}")
        elif name == "speculation":
            message.speculation.disabled = not value
        elif name == "max_draft_tokens":
            _assign(message.speculation, name, value, f"options.speculation.{name}")
        # Before the sampling parameters: bad words are text here, and tokens there.
        elif name in message.DESCRIPTOR.fields_by_name:
            _assign(message, name, value, f"options.{name}")
        elif name in sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name:
            _assign(message.sampling, name, value, f"options.sampling.{name}")
    # A name of our own lets us ask again for the same answer, whatever happened to the first asking.
    message.request_id = message.request_id or uuid.uuid4().hex
    return message


def _assign(message: protobuf.Message, name: str, value: Any, field: str) -> None:
    """Sets a field of any shape; raises InvalidArgument naming `field` for a value that it cannot hold."""
    if isinstance(value, str) and hasattr(getattr(message, name), "extend"):
        raise InvalidArgument(f"must be a list of strings, is the string {value!r}", field=field)
    try:
        if isinstance(value, Mapping):
            getattr(message, name).update(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(str(error), field=field) from None


def _json_text(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)
