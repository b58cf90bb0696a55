"""Grammars made of what clients ask: their own after the thinking, and tool calls that fit their schemas."""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument
from services.gateway.output.marks import Mark

_ANYTHING = "/(.|\\n)*/"
# Without a bound a model may go on with white space for ever.
_WHITESPACE = "[ \\n\\t]{0,20}"


def after_thinking(grammar: Grammar, *, think_end_id: int) -> Grammar:
    """Returns a grammar for thinking of any kind, its end token, and then what `grammar` describes.

    Raises InvalidArgument for what is wrong, and for Lark: its rules cannot be put inside another grammar's.
    """
    if grammar.language == "lark":
        raise InvalidArgument(
            "a Lark grammar holds from the first token: turn the thinking off", field="options.grammar.lark"
        )
    field = f"options.grammar.{grammar.language}"
    if not grammar.text.strip():
        raise InvalidArgument("is empty", field=field)
    try:
        if grammar.language == "json_schema":
            answer = json_rule(json.loads(grammar.text), whitespace_flexible=False)
        else:
            answer = f"/{regex_to_lark(grammar.text)}/"
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(str(error), field=field) from None
    return _lark(f"start: thinking <[{think_end_id}]> answer", f"thinking: {_ANYTHING}", f"answer: {answer}")


def tool_call_grammar(
    schemas: Mapping[str, Mapping[str, Any]], marks: Mapping[Mark, int], *, thinking: bool
) -> Grammar:
    """Returns a grammar for thinking, if the prompt opened it, text, and calls that fit the schemas."""
    token = {mark: f"<[{token_id}]>" for mark, token_id in marks.items()}
    opening = f"thinking {token[Mark.THINK_END]} " if thinking else ""
    section = f"{token[Mark.SECTION_BEGIN]} call+ {token[Mark.SECTION_END]}"
    tools = [f"tool_{i}" for i in range(len(schemas))]
    rules = [
        f"{tool}: {json.dumps(f'functions.{name}:', ensure_ascii=False)} /[0-9]{{1,4}}/ "
        f"{token[Mark.ARGUMENT_BEGIN]} {tool_rule(schema)}"
        for tool, (name, schema) in zip(tools, schemas.items(), strict=True)
    ]
    return _lark(
        f"start: {opening}text ( {section} )?",
        *([f"thinking: {_ANYTHING}"] if thinking else []),
        f"text: {_ANYTHING}",
        f"call: {token[Mark.CALL_BEGIN]} ( {' | '.join(tools)} ) {token[Mark.CALL_END]}",
        *rules,
    )


def tool_rule(schema: Mapping[str, Any]) -> str:
    """Returns what constrains a tool's arguments. What cannot be enforced of a schema is left to the tool."""
    return json_rule({"type": "object"} | dict(schema), whitespace_pattern=_WHITESPACE, lenient=True)


def json_rule(schema: Any, **guidance: Any) -> str:
    """Returns a rule's body for a JSON schema, on one line: two would end the rule."""
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": guidance}
    return "%json " + json.dumps(schema)


def _lark(*rules: str) -> Grammar:
    return Grammar(language="lark", text="\n".join(rules) + "\n")
