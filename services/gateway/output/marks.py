"""The tokens that structure an answer, known by id: thinking and Kimi's tool calls."""

from collections.abc import Mapping
from enum import Enum

from services.gateway.tokenizer import Tokenizer


class Mark(Enum):
    """A structuring token; the value is its text."""

    THINK_BEGIN = "<think>"
    THINK_END = "</think>"
    SECTION_BEGIN = "<|tool_calls_section_begin|>"
    SECTION_END = "<|tool_calls_section_end|>"
    CALL_BEGIN = "<|tool_call_begin|>"
    ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
    CALL_END = "<|tool_call_end|>"


THINKING_MARKS = frozenset({Mark.THINK_BEGIN, Mark.THINK_END})


def marks_of(tokenizer: Tokenizer) -> Mapping[int, Mark]:
    """Returns the marks that the tokenizer has, by token id."""
    ids = {mark: tokenizer.added_token_id(mark.value) for mark in Mark}
    return {token_id: mark for mark, token_id in ids.items() if token_id is not None}
