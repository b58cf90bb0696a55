"""A small tokenizer, and readings of its tokens."""

import pytest

from services.gateway.output.marks import marks_of
from services.gateway.output.parser import OutputFormat
from services.gateway.tokenizer.hugging_face import HuggingFaceTokenizer
from tests.unit.gateway.small import Reading, build_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(build_tokenizer(), {"type": "ByteLevel"})


@pytest.fixture
def reading(tokenizer):
    """Returns a function that makes a Reading; by default of an answer after no thinking."""

    def make(*, thinking=False, marks=True, stop=(), stop_token_ids=(), schemas=None, num_earlier_calls=0):
        return Reading(
            OutputFormat(
                tokenizer=tokenizer,
                marks=marks_of(tokenizer) if marks else {},
                thinking=thinking,
                stop_strings=stop,
                stop_token_ids=frozenset(stop_token_ids),
                tool_schemas={"f": {}, "g": {}} if schemas is None else schemas,
                num_earlier_calls=num_earlier_calls,
            )
        )

    return make
