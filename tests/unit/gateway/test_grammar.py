"""Grammars and the process that compiles them."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from llguidance import LLMatcher, LLTokenizer

from outrider.params import Grammar
from outrider.rpc.errors import InvalidArgument
from services.gateway.grammar import after_thinking, tool_call_grammar
from services.gateway.grammar_checker import GrammarChecker
from services.gateway.grammar_process import compile_error
from services.gateway.output.marks import Mark
from tests.unit.gateway.small import build_tokenizer


def grammar(text, language="regex"):
    return Grammar(language=language, text=text)


@asynccontextmanager
async def checking(**limits):
    checker = GrammarChecker(**{"max_num_bytes": 1000, "max_seconds": 60.0} | limits)
    try:
        yield checker
    finally:
        await checker.close()


@pytest.mark.parametrize(
    ("language", "text"),
    [("json_schema", '{"type": "object"}'), ("regex", "[a-z]+"), ("lark", 'start: "a" /b+/')],
)
def test_grammars_that_compile_have_no_error(language, text):
    assert compile_error(language, text) == ""


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("json_schema", ""),
        ("json_schema", "{"),
        ("json_schema", "[]"),
        ("json_schema", '{"type": "strin"}'),
        ("regex", "a("),
        ("regex", "(?=a)"),
        ("lark", "start: nothing"),
        ("lark", ""),
    ],
)
def test_grammars_that_do_not_compile_say_why(language, text):
    assert compile_error(language, text)


async def test_wrong_grammars_are_refused_and_right_ones_pass():
    async with checking() as checker:
        with pytest.raises(InvalidArgument) as caught:
            await checker.check({"options.grammar.regex": grammar("a(")}, tenant="t")
        await checker.check({"options.grammar.regex": grammar("a")}, tenant="t")
    assert caught.value.field == "options.grammar.regex"


async def test_a_long_grammar_is_refused_before_it_is_compiled():
    async with checking(max_num_bytes=3) as checker:
        with pytest.raises(InvalidArgument, match="3 bytes"):
            await checker.check({"options.grammar.regex": grammar("äaa")}, tenant="t")


async def test_a_slow_grammar_is_stopped_and_the_next_is_answered():
    async with checking(max_seconds=1e-6) as checker:
        with pytest.raises(InvalidArgument, match="does not compile within"):
            await checker.check({"options.grammar.regex": grammar("b")}, tenant="t")
        checker._max_seconds = 60.0
        with pytest.raises(InvalidArgument, match="regex"):
            await checker.check({"options.grammar.regex": grammar("a(")}, tenant="t")


async def test_a_client_that_leaves_while_its_grammar_compiles_disturbs_nobody():
    async with checking() as checker:
        leaving = asyncio.create_task(checker.check({"leaving": grammar("a(")}, tenant="t"))
        await asyncio.sleep(0)
        leaving.cancel()
        await checker.check({"staying": grammar("a")}, tenant="t")


async def test_checks_at_the_same_time_get_their_own_answers():
    async with checking() as checker:
        texts = ["a", "b(", "c", "d("]
        checks = (checker.check({text: grammar(text)}, tenant="t") for text in texts)
        answers = await asyncio.gather(*checks, return_exceptions=True)
    assert [getattr(answer, "field", None) for answer in answers] == [None, "b(", None, "d("]


async def test_the_grammars_of_a_request_are_checked_at_once_and_the_wrong_one_is_named():
    async with checking() as checker:
        asked = {text: grammar(text) for text in ("a", "b", "c(", "d(")}
        with pytest.raises(InvalidArgument) as caught:
            await checker.check(asked, tenant="t")
        await checker.check({"e": grammar("e")}, tenant="t")
    assert caught.value.field == "c("


async def test_tenants_have_their_grammars_checked_by_turns():
    finished = []

    async def check(checker, tenant, text):
        await checker.check({"f": grammar(text)}, tenant=tenant)
        finished.append(tenant)

    async with checking() as checker, asyncio.TaskGroup() as tasks:
        for tenant, text in [*(("greedy", text) for text in "abcdef"), ("modest", "g")]:
            tasks.create_task(check(checker, tenant, text))
    assert finished.index("modest") <= 1


@pytest.mark.parametrize(
    ("language", "text"), [("json_schema", '{"type":\n"object"}'), ("regex", "a/b\n[^/]+")]
)
def test_a_grammar_can_follow_the_thinking(language, text):
    wrapped = after_thinking(grammar(text, language), think_end_id=7)
    assert compile_error(wrapped.language, wrapped.text) == ""
    assert "<[7]>" in wrapped.text


def test_a_lark_grammar_cannot_follow_the_thinking():
    with pytest.raises(InvalidArgument) as caught:
        after_thinking(grammar('start: "a"', "lark"), think_end_id=7)
    assert caught.value.field == "options.grammar.lark"


TOKENIZER = build_tokenizer()
MARKS = {mark: TOKENIZER.encode(mark.value).ids[0] for mark in Mark}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


def accepts(made: Grammar, text: str) -> bool:
    """Returns whether a grammar allows a whole output, token by token."""
    tokenizer = LLTokenizer(TOKENIZER.to_str(), eos_token=TOKENIZER.encode("<|im_end|>").ids)
    matcher = LLMatcher(tokenizer, made.text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hm</think>no call", True),
        ("hm\n</think>" + CALL.format('{"a": 1}'), True),
        ("</think>so:" + CALL.format('{"a":1,"b":"x"}'), True),
        ("</think>" + CALL.format("{}"), False),
        ("</think>" + CALL.format('{"a": "x"}'), False),
        ("</think>" + CALL.format('{"a": 1}').replace("functions.f", "functions.h"), False),
        ("no end of thinking", False),
    ],
)
def test_calls_must_fit_the_schema_of_their_tool(text, expected):
    made = tool_call_grammar({"f": SCHEMA, 'g "\\: é': {}}, MARKS, thinking=True)
    assert accepts(made, text) == expected


def test_without_thinking_calls_may_come_at_once():
    assert accepts(tool_call_grammar({"f": SCHEMA}, MARKS, thinking=False), CALL.format('{"a": 1}'))


@pytest.mark.parametrize(
    ("text", "expected"), [("hm</think>[1]", True), ("[1]", False), ("hm</think>[x", False)]
)
def test_a_wrapped_schema_holds_after_the_thinking_only(text, expected):
    wrapped = after_thinking(
        grammar('{"type": "array", "items": {"type": "integer"}}', "json_schema"),
        think_end_id=MARKS[Mark.THINK_END],
    )
    assert accepts(wrapped, text) == expected
