"""Tokenizers described by a tiktoken.model."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.rpc.config import ConfigError
from services.gateway.tokenizer import load_tokenizer
from services.gateway.tokenizer.rank_file import RankFileTokenizer

MERGED = (b"He", b"ll", b"Hell", b"Hello", b"12", b"123", "中".encode()[:2], "中".encode(), "中文".encode())
RANKS = {bytes([i]): i for i in range(256)} | {token: 256 + i for i, token in enumerate(MERGED)}
FIRST_SPECIAL = len(RANKS)
ADDED = {
    FIRST_SPECIAL + 2: {"content": "<|im_end|>", "special": True},
    FIRST_SPECIAL + 3: {"content": "<think>", "special": False},
}
TOKENIZER = RankFileTokenizer(RANKS, ADDED)
# The spellings of tokens that stand for no text.
SPECIAL = re.compile("|".join(re.escape(content) for content in TOKENIZER.spellings if content != "<think>"))


def write(directory, *, ranks=RANKS, added=ADDED):
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (directory / "tiktoken.model").write_text("\n".join(lines))
    (directory / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))


def words(text):
    """Returns the text cut where a token with a byte of its own shows a boundary of the split pattern."""
    return [TOKENIZER.token_bytes(token_id).decode("utf-8", "replace") for token_id in TOKENIZER.encode(text)]


def test_a_file_is_read(tmp_path):
    write(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hello<|im_end|>") == [RANKS[b"Hello"], FIRST_SPECIAL + 2]
    assert tokenizer.vocab_size == FIRST_SPECIAL + 256


@given(st.text(max_size=60))
def test_encoding_and_the_tokens_bytes_are_inverse(text):
    encoded = b"".join(map(TOKENIZER.token_bytes, TOKENIZER.encode(text)))
    assert encoded == SPECIAL.sub("", text).encode()


def test_chinese_is_split_from_other_scripts():
    assert words("中文A")[0] == "中文"
    assert TOKENIZER.encode("A中文")[-1] == RANKS["中文".encode()]


def test_digits_come_in_threes_from_the_left():
    assert words("12312") == ["123", "12"]


def test_unnamed_special_tokens_are_reserved():
    assert TOKENIZER.encode(f"<|reserved_token_{FIRST_SPECIAL}|>") == [FIRST_SPECIAL]
    assert TOKENIZER.token_bytes(FIRST_SPECIAL) == b""


def test_added_tokens_that_are_not_special_have_text():
    assert TOKENIZER.encode("<think>") == [FIRST_SPECIAL + 3]
    assert TOKENIZER.token_bytes(FIRST_SPECIAL + 3) == b"<think>"


def test_long_runs_are_tokenized_in_parts():
    text = "a" * 60_000 + " " * 30_000 + "b"
    assert b"".join(map(TOKENIZER.token_bytes, TOKENIZER.encode(text))) == text.encode()


@pytest.mark.parametrize("text", ["", "no base64!\n", "QQ== 0\nQg== 2\n", "QQ== x\n"])
def test_a_corrupt_file_is_named(tmp_path, text):
    (tmp_path / "tiktoken.model").write_text(text)
    with pytest.raises(ConfigError, match=r"tiktoken.model"):
        load_tokenizer(tmp_path)


def test_wrong_special_tokens_are_named(tmp_path):
    write(tmp_path, added={"x": {"content": "y"}})
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: added_tokens_decoder"):
        load_tokenizer(tmp_path)
