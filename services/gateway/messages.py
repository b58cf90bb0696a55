"""What clients ask, as dataclasses: the requests of gateway.proto, checked for shape."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf import json_format, struct_pb2

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import gateway_pb2 as pb
from outrider.v1 import sampling_pb2

_ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Whether and how far tokens may be guessed ahead; None: as the scheduler likes."""

    disabled: bool = False
    max_draft_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where an answer broke off."""

    token_ids: tuple[int, ...]
    seed: int
    request_id: str
    # Empty: any.
    numerics_id: str

    @classmethod
    def from_proto(cls, message: pb.Resume) -> Self:
        """Reads a message."""
        return cls(
            token_ids=tuple(message.token_ids),
            seed=message.seed,
            request_id=message.request_id,
            numerics_id=message.numerics_id,
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What Generate and Chat have in common. `sampling` stays a message until its defaults are known."""

    sampling: sampling_pb2.SamplingParams
    seed: int | None
    choice: int
    stop: tuple[str, ...]
    bad_words: tuple[str, ...]
    grammar: Grammar | None
    speculation: Speculation
    resume: Resume | None
    request_id: str
    priority: int

    @classmethod
    def from_proto(cls, message: pb.GenerationOptions) -> Self:
        """Reads a message."""
        language, speculation = message.grammar.WhichOneof("language"), message.speculation
        return cls(
            sampling=message.sampling,
            seed=message.seed if message.HasField("seed") else None,
            choice=message.choice,
            stop=tuple(message.stop),
            bad_words=tuple(message.bad_words),
            grammar=Grammar(language=language, text=getattr(message.grammar, language)) if language else None,
            speculation=Speculation(
                disabled=speculation.disabled,
                max_draft_tokens=speculation.max_draft_tokens
                if speculation.HasField("max_draft_tokens")
                else None,
            ),
            resume=Resume.from_proto(message.resume) if message.HasField("resume") else None,
            request_id=message.request_id,
            priority=message.priority,
        )


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """A prompt to continue: text or token ids."""

    model: str
    prompt: str | tuple[int, ...]
    options: Options

    @classmethod
    def from_proto(cls, message: pb.GenerateRequest) -> Self:
        """Reads a message; raises InvalidArgument if there is no prompt."""
        kind = message.WhichOneof("prompt")
        prompt = message.text if kind == "text" else tuple(message.token_ids.ids)
        if not prompt:
            raise InvalidArgument("is empty", field=kind or "prompt")
        return cls(model=message.model, prompt=prompt, options=Options.from_proto(message.options))


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @classmethod
    def from_proto(cls, message: pb.Tool, field: str) -> Self:
        """Reads a message; raises InvalidArgument naming what is missing or malformed."""
        if not message.name:
            raise InvalidArgument("is empty", field=f"{field}.name")
        parameters = _read_schema(message.parameters_json_schema, f"{field}.parameters_json_schema")
        return cls(name=message.name, description=message.description, parameters=parameters)

    def for_template(self) -> dict[str, Any]:
        """Returns the tool in the form that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A conversation to answer. Messages are in the form that chat templates expect."""

    model: str
    messages: list[dict[str, Any]]
    tools: tuple[Tool, ...]
    # None: not said, which means yes.
    thinking: bool | None
    template_options: Mapping[str, Any]
    options: Options

    @classmethod
    def from_proto(cls, message: pb.ChatRequest) -> Self:
        """Reads a message; raises InvalidArgument naming what is missing or malformed."""
        if not message.messages:
            raise InvalidArgument("is empty", field="messages")
        tools = tuple(Tool.from_proto(tool, f"tools[{i}]") for i, tool in enumerate(message.tools))
        seen: set[str] = set()
        for i, tool in enumerate(tools):
            if tool.name in seen:
                raise InvalidArgument(f"names {tool.name!r} twice", field=f"tools[{i}].name")
            seen.add(tool.name)
        return cls(
            model=message.model,
            messages=[_turn(turn, f"messages[{i}]") for i, turn in enumerate(message.messages)],
            tools=tools,
            thinking=message.thinking if message.HasField("thinking") else None,
            template_options=_plain(message.template_options),
            options=Options.from_proto(message.options),
        )

    @property
    def num_earlier_calls(self) -> int:
        """Returns how many tool calls the conversation holds."""
        return sum(len(message.get("tool_calls", ())) for message in self.messages)


def _turn(message: pb.ChatMessage, field: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise InvalidArgument("is not set", field=f"{field}.role")
    turn: dict[str, Any] = {"role": _ROLES[message.role], "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role == pb.ROLE_TOOL:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _call(call: pb.ToolCall) -> dict[str, Any]:
    # The arguments stay the text that the model wrote, so that the history is the same tokens again.
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _read_schema(text: str, field: str) -> Mapping[str, Any]:
    if not text:
        return {"type": "object", "properties": {}}
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON: {error}", field=field) from None
    if not isinstance(schema, dict):
        raise InvalidArgument("not a JSON object", field=field)
    if not isinstance(schema.get("properties", {}), dict):
        raise InvalidArgument("`properties` is not an object", field=field)
    required = schema.get("required", [])
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise InvalidArgument("`required` is not a list of names", field=field)
    return schema


def _plain(options: struct_pb2.Struct) -> dict[str, Any]:
    """Returns a Struct as Python values; its numbers are all floats, so whole ones become integers."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: whole(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [whole(inner) for inner in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    try:
        return whole(json_format.MessageToDict(options))
    except ValueError as error:
        raise InvalidArgument(f"not JSON: {error}", field="template_options") from None
