"""Renders conversations with the chat template that is shipped with the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

MODEL_DIR = Path(__file__).parent.parent / "models" / "tiny"
Message = Mapping[str, object]


@cache
def template() -> Template:
    """The compiled template; JSON is plain, where jinja's own filter escapes HTML and sorts keys."""
    environment = ImmutableSandboxedEnvironment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((MODEL_DIR / "chat_template.jinja").read_text())


def render(messages: Sequence[Message], *, tools: list[dict] | None = None, thinking: bool = True) -> str:
    """The text of a conversation, up to where the model goes on."""
    return template().render(messages=messages, tools=tools, thinking=thinking, add_generation_prompt=True)


def special_id(tokenizer: Tokenizer, name: str) -> int:
    """The id of a special token, which must exist."""
    token_id = tokenizer.token_to_id(name)
    assert token_id is not None, name
    return token_id
