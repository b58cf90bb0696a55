"""The way from output tokens to text, reasoning and tool calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.output.marks import Mark, marks_of
from services.gateway.output.parser import OutputFormat, Stop
from services.gateway.tokenizer.hugging_face import HuggingFaceTokenizer
from tests.unit.gateway.small import HALVES, Reading, build_tokenizer

TOKENIZER = HuggingFaceTokenizer(build_tokenizer(), {"type": "ByteLevel"})
MARKS = {mark: token_id for token_id, mark in marks_of(TOKENIZER).items()}
STOP_STRINGS = ("hello", "lo wor", "€", "\n\n")
END = TOKENIZER.added_token_id("<|im_end|>")

# Mostly what makes trouble: marks, halves of characters, parts of stop strings and of call ids.
interesting = st.sampled_from(
    [
        *MARKS.values(),
        *MARKS.values(),
        *range(256, 256 + 11 + len(HALVES)),
        *b'0123:.fgel lo\n{}"',
        0xE2,
        0x82,
        0xAC,
        0xFF,
        END,
    ]
)
token_lists = st.lists(interesting | st.integers(0, TOKENIZER.vocab_size - 1), max_size=40)
cut_sets = st.sets(st.integers(1, 40))
formats = st.builds(
    lambda thinking, stop, ends, marks, schemas: OutputFormat(
        tokenizer=TOKENIZER,
        marks=marks_of(TOKENIZER) if marks else {},
        thinking=thinking and marks,
        stop_strings=stop,
        stop_token_ids=ends,
        tool_schemas=schemas,
    ),
    st.booleans(),
    st.lists(st.sampled_from(STOP_STRINGS), max_size=3),
    st.sampled_from([frozenset(), frozenset({END})]),
    st.booleans(),
    st.sampled_from([{}, {"f": {}}, {"f": {"properties": {"a": {}}}, "g:1": {"required": ["b"]}}]),
)


@given(formats, token_lists, cut_sets, cut_sets)
def test_the_chunking_does_not_show(output_format, token_ids, cuts, other_cuts):
    reading = Reading(output_format)
    assert reading.whole(token_ids, cuts) == reading.whole(token_ids, other_cuts)


@given(formats, token_lists, cut_sets)
def test_an_answer_resumed_at_any_delta_comes_to_the_same(output_format, token_ids, cuts):
    reading = Reading(output_format)
    expected = reading.whole(token_ids)
    deltas, _ = reading.deltas(token_ids, cuts)
    for i, num_sent in enumerate(reading.boundaries):
        resumed = reading.whole(token_ids, before=tuple(deltas[: i + 1]), num_sent=num_sent)
        assert resumed == expected


@given(formats, token_lists, cut_sets)
def test_every_token_comes_out_once_and_in_order(output_format, token_ids, cuts):
    deltas, parser = Reading(output_format).deltas(token_ids, cuts)
    assert sum(delta.num_tokens for delta in deltas) == parser.num_tokens == parser.num_completed
    assert parser.num_tokens == len(token_ids) or parser.stop is not None


@given(st.text(max_size=30), cut_sets)
def test_whole_characters_come_out_as_they_went_in(text, cuts):
    reading = Reading(
        OutputFormat(
            tokenizer=TOKENIZER, marks={}, thinking=False, stop_strings=(), stop_token_ids=(), tool_schemas={}
        )
    )
    token_ids = list(text.encode())
    deltas, _ = reading.deltas(token_ids, cuts)
    assert "".join(delta.text for delta in deltas) == text
    assert text == "" or "\N{REPLACEMENT CHARACTER}" in text or all("�" not in d.text for d in deltas)


@given(token_lists)
def test_without_marks_the_text_is_the_tokens_bytes(token_ids):
    reading = Reading(
        OutputFormat(
            tokenizer=TOKENIZER, marks={}, thinking=False, stop_strings=(), stop_token_ids=(), tool_schemas={}
        )
    )
    data = b"".join(map(TOKENIZER.token_bytes, token_ids))
    assert reading.whole(token_ids).text == data.decode("utf-8", "replace")


@given(token_lists, st.lists(st.sampled_from(STOP_STRINGS), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(token_ids, stop_strings):
    output_format = OutputFormat(
        tokenizer=TOKENIZER,
        marks={},
        thinking=False,
        stop_strings=stop_strings,
        stop_token_ids=(),
        tool_schemas={},
    )
    parsed = Reading(output_format).whole(token_ids)
    everything = b"".join(map(TOKENIZER.token_bytes, token_ids)).decode("utf-8", "replace")
    assert everything.startswith(parsed.text)
    assert not any(stop in parsed.text for stop in stop_strings)
    assert (parsed.stop is None) == (parsed.text == everything)


def test_a_token_that_ends_inside_a_character_is_held_back_whole(reading, tokenizer):
    half, rest = (256 + 11 + HALVES.index(piece) for piece in (b"a\xe2", b"\x82\xac"))
    deltas, _ = reading().deltas([half, rest], cuts={1})
    assert [(delta.text, delta.num_tokens) for delta in deltas] == [("", 0), ("a€", 2)]


def test_special_tokens_have_no_text(reading, tokenizer):
    assert reading().whole([*b"a", END, *b"b"]).text == "ab"


def test_a_stop_token_counts_and_has_no_text(reading, tokenizer):
    parsed = reading(stop_token_ids=[ord("b")]).whole(b"abc")
    assert (parsed.text, parsed.stop, parsed.num_tokens) == ("a", Stop(stop_token_id=ord("b")), 2)


def test_thinking_ends_at_its_end_token(reading, tokenizer):
    parsed = reading(thinking=True).whole(tokenizer.encode("hm</think>yes"))
    assert (parsed.reasoning, parsed.text, parsed.num_reasoning_tokens) == ("hm", "yes", 2)


def test_thinking_may_be_begun_by_the_model(reading, tokenizer):
    parsed = reading().whole(tokenizer.encode("<think>hm</think>yes"))
    assert (parsed.reasoning, parsed.text, parsed.anomalies) == ("hm", "yes", [])


def test_stop_strings_do_not_apply_to_thinking(reading, tokenizer):
    parsed = reading(thinking=True, stop=["hello"]).whole(tokenizer.encode("hello</think>say hello you"))
    assert (parsed.reasoning, parsed.text, parsed.stop) == ("hello", "say ", Stop(stop_string="hello"))


def test_text_that_may_begin_a_stop_string_is_held_back_with_its_tokens(reading, tokenizer):
    deltas, _ = reading(stop=["hello"]).deltas(b"a help", cuts={2, 3, 5, 6})
    assert [(delta.text, delta.num_tokens) for delta in deltas] == [
        ("a ", 2), ("", 0), ("", 0), ("help", 4), ("", 0),
    ]  # fmt: skip


def test_the_token_that_completes_a_stop_string_is_the_last(reading):
    parsed = reading(stop=["lo", "hello"]).whole(b"hello world")
    assert (parsed.text, parsed.stop, parsed.num_tokens) == ("", Stop(stop_string="hello"), 5)


SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


def test_tool_calls_are_split_into_id_name_and_arguments(reading, tokenizer):
    text = "I look." + SECTION.format(id="functions.f:4", arguments='{"a": 1}') + "Done."
    parsed = reading().whole(tokenizer.encode(text))
    assert parsed.calls == [{"id": "functions.f:4", "name": "f", "arguments": '{"a": 1}'}]
    assert (parsed.text, parsed.anomalies) == ("I look.Done.", [])


def test_several_calls_of_a_section_have_their_own_indices(reading, tokenizer):
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    text = "<|tool_calls_section_begin|>" + call.format("functions.f:0") + "\n" + call.format("g")
    parsed = reading().whole(tokenizer.encode(text + "<|tool_calls_section_end|>"))
    assert [call["id"] for call in parsed.calls] == ["functions.f:0", "functions.g:1"]
    assert parsed.text == ""


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("functions.f:0", ("f", "functions.f:0")),
        ("f:2", ("f", "functions.f:2")),
        (" f ", ("f", "functions.f:5")),
        ("functions.f", ("f", "functions.f:5")),
        ("functions.a:b:3", ("a:b", "functions.a:b:3")),
        ("functions.v:1", ("v:1", "functions.v:1:5")),
        ("functions.functions.f:1", ("functions.f", "functions.functions.f:1")),
        ("f:99999999999999999999", ("f:99999999999999999999", "functions.f:99999999999999999999:5")),
    ],
)
def test_call_ids_are_normalised(reading, tokenizer, header, expected):
    made = reading(schemas={"f": {}, "v:1": {}}, num_earlier_calls=5)
    (call,) = made.whole(tokenizer.encode(SECTION.format(id=header, arguments="{}"))).calls
    assert (call["name"], call["id"]) == expected


def test_a_bare_number_calls_the_only_tool(reading, tokenizer):
    (call,) = reading(schemas={"f": {}}).whole(tokenizer.encode(SECTION.format(id="3", arguments="{}"))).calls
    assert call == {"id": "functions.f:3", "name": "f", "arguments": "{}"}


def test_a_bare_number_calls_the_tool_that_takes_the_arguments(reading, tokenizer):
    schemas = {"f": {"properties": {"a": {}}}, "g": {"properties": {"b": {}, "c": {}}, "required": ["b"]}}
    parsed = reading(schemas=schemas).whole(tokenizer.encode(SECTION.format(id="3", arguments='{"b": 1}')))
    assert parsed.calls == [{"id": "functions.g:3", "name": "g", "arguments": '{"b": 1}'}]


def test_a_bare_number_that_fits_no_tool_stands_for_itself(reading, tokenizer):
    parsed = reading().whole(tokenizer.encode(SECTION.format(id="3", arguments='{"z": 1}')))
    assert parsed.calls == [{"id": "functions.3:3", "name": "3", "arguments": '{"z": 1}'}]
    assert parsed.anomalies == ["call_without_name"]


def test_a_section_inside_the_thinking_closes_it(reading, tokenizer):
    text = "hm" + SECTION.format(id="f:0", arguments="{}") + "so"
    parsed = reading(thinking=True).whole(tokenizer.encode(text))
    assert (parsed.reasoning, parsed.text, len(parsed.calls)) == ("hm", "so", 1)
    assert parsed.anomalies == ["tool_calls_in_thinking"]


def test_a_call_that_is_cut_short_keeps_what_there_is(reading, tokenizer):
    text = '<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a'
    parsed = reading().whole(tokenizer.encode(text))
    assert parsed.calls == [{"id": "functions.f:0", "name": "f", "arguments": '{"a'}]
    assert sorted(parsed.anomalies) == ["unfinished_call", "unfinished_section"]


def test_a_call_that_is_cut_short_in_its_id_is_no_call(reading, tokenizer):
    parsed = reading().whole(tokenizer.encode("so<|tool_calls_section_begin|><|tool_call_begin|>func"))
    assert (parsed.calls, parsed.text) == ([], "so")


def test_a_missing_call_end_does_not_swallow_the_next_call(reading, tokenizer):
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"
        "<|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    parsed = reading().whole(tokenizer.encode(text))
    assert [call["name"] for call in parsed.calls] == ["f", "g"]


def test_thinking_marks_inside_arguments_are_text(reading, tokenizer):
    parsed = reading().whole(tokenizer.encode(SECTION.format(id="f:0", arguments='"</think>"')))
    assert parsed.calls[0]["arguments"] == '"</think>"'


def test_a_call_is_named_in_its_first_piece_only(reading, tokenizer):
    token_ids = tokenizer.encode(SECTION.format(id="f:0", arguments="{}"))
    deltas, _ = reading().deltas(token_ids, cuts=set(range(1, 30)))
    pieces = [piece for delta in deltas for piece in delta.tool_calls]
    assert [piece.name for piece in pieces] == ["f", "", ""]
    assert all(piece.id or piece.arguments for piece in pieces)
    assert Mark.CALL_END.value not in "".join(piece.arguments for piece in pieces)
