"""Special tokens spelled out in what clients write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.plain_text import PlainText
from services.gateway.template import ChatTemplate

SPELLINGS = frozenset({"<|a|>", "<|ab|>", "|><b", "</think>"})
texts = st.lists(st.sampled_from(["<", "|", "a", "b", ">", "<|", "|>", "</think>", "x", "\U00100000"])).map(
    "".join
)


def pieces(content: str, name: str = "", except_for=()) -> list[str]:
    """Returns what is to be tokenized of a prompt in which the template writes one special token."""
    template = ChatTemplate("<|a|>{% for m in messages %}{{ m.content | trim }}{{ m.name }}{% endfor %}", {})
    messages = [{"content": content, "name": name}]
    plain = PlainText(SPELLINGS, messages)
    rendered = template.render(
        plain.protect(messages, except_for=except_for),
        tools=[],
        thinking=True,
        options={},
        max_num_characters=1000,
    )
    return plain.split(rendered)


@given(texts, texts)
def test_whatever_clients_write_spells_no_special_token(content, name):
    first, *others = pieces(content, name)
    assert first.startswith("<|a|>")
    assert "".join([first, *others]) == f"<|a|>{content}{name}"
    found = [
        spelling
        for piece in (first.removeprefix("<|a|>"), *others)
        for spelling in SPELLINGS
        if spelling in piece
    ]
    assert found == []


def test_other_text_is_tokenized_in_one_piece():
    assert pieces("<b>a</b> | x < y") == ["<|a|><b>a</b> | x < y"]


@pytest.mark.parametrize("except_for", [(), ("</think>",)])
def test_spellings_may_be_allowed(except_for):
    assert (len(pieces("a</think>b", except_for=except_for)) == 1) == bool(except_for)
