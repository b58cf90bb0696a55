"""What one request may ask for at most. Sizes are looked at before anything is made of a message."""

from collections.abc import Sequence

from outrider.rpc.errors import InvalidArgument
from outrider.v1 import gateway_pb2 as pb
from services.gateway.config import Limits

MAX_REQUEST_ID_LENGTH = 128
_MAX_TEMPLATE_OPTIONS_BYTES = 65_536


def check_generate(message: pb.GenerateRequest, limits: Limits) -> None:
    """Raises InvalidArgument naming the field of which there is too much."""
    _check_number(len(message.token_ids.ids), limits.max_prompt_tokens, "tokens", "token_ids")
    _check_options(message.options, limits)


def check_chat(message: pb.ChatRequest, limits: Limits) -> None:
    """Raises InvalidArgument naming the field of which there is too much."""
    _check_number(len(message.tools), limits.max_tools, "tools", "tools")
    for i, tool in enumerate(message.tools):
        field = f"tools[{i}].parameters_json_schema"
        _check_number(len(tool.parameters_json_schema), limits.max_grammar_bytes, "characters", field)
    _check_number(len(message.messages), limits.max_messages, "turns", "messages")
    num_calls = sum(len(turn.tool_calls) for turn in message.messages)
    _check_number(num_calls, limits.max_messages, "tool calls", "messages")
    num_bytes = message.template_options.ByteSize()
    _check_number(num_bytes, _MAX_TEMPLATE_OPTIONS_BYTES, "bytes", "template_options")
    _check_options(message.options, limits)


def _check_options(options: pb.GenerationOptions, limits: Limits) -> None:
    _check_strings(options.stop, limits.max_stop_strings, limits.max_stop_string_length, "options.stop")
    _check_strings(options.bad_words, limits.max_bad_words, limits.max_bad_word_length, "options.bad_words")
    _check_number(len(options.request_id), MAX_REQUEST_ID_LENGTH, "characters", "options.request_id")
    _check_number(
        len(options.resume.token_ids), limits.max_resumed_tokens, "tokens", "options.resume.token_ids"
    )


def _check_number(num: int, limit: int, noun: str, field: str) -> None:
    if num > limit:
        raise InvalidArgument(f"has more than {limit} {noun}", field=field)


def _check_strings(strings: Sequence[str], max_num: int, max_length: int, field: str) -> None:
    _check_number(len(strings), max_num, "strings", field)
    for i, string in enumerate(strings):
        if not 0 < len(string) <= max_length:
            raise InvalidArgument(f"must have 1 to {max_length} characters", field=f"{field}[{i}]")


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises InvalidArgument naming the first id that is not in the vocabulary."""
    if max(token_ids, default=0) < vocab_size:
        return
    for i, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            raise InvalidArgument(
                f"token id {token_id} is not below the vocabulary size {vocab_size}", field=f"{field}[{i}]"
            )


def check_resumed(token_ids: tuple[int, ...], *, vocab_size: int, max_tokens: int) -> None:
    """Raises InvalidArgument for resumed tokens that no answer can have: they are untrusted input."""
    if len(token_ids) > max_tokens:
        raise InvalidArgument(
            f"has {len(token_ids)} tokens, above max_tokens {max_tokens}", field="options.resume.token_ids"
        )
    check_token_ids(token_ids, vocab_size, "options.resume.token_ids")
