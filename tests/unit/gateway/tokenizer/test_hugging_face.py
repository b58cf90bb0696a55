"""Tokenizers described by a tokenizer.json."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from outrider.rpc.config import ConfigError
from services.gateway.output.detokenizer import Detokenizer
from services.gateway.tokenizer import load_tokenizer
from services.gateway.tokenizer.hugging_face import HuggingFaceTokenizer
from tests.unit.gateway.small import build_tokenizer

PLAIN = build_tokenizer()
TOKENIZER = HuggingFaceTokenizer(PLAIN, {"type": "ByteLevel"})


def pieces_tokenizer() -> tokenizers.Tokenizer:
    """Pieces with byte fallback, as sentencepiece makes them."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "b": 4} | {f"<0x{i:02X}>": 5 + i for i in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@given(st.text(max_size=40))
def test_encoding_and_the_tokens_bytes_are_inverse(text):
    token_ids = TOKENIZER.encode(text)
    assert b"".join(map(TOKENIZER.token_bytes, token_ids)) == text.encode()


@given(st.lists(st.integers(0, 255 + 11)))
def test_tokens_read_as_the_library_reads_them(token_ids):
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]
    assert "".join(piece.text for piece in pieces if piece) == PLAIN.decode(token_ids)


def test_byte_fallback_and_leading_spaces_survive():
    plain = pieces_tokenizer()
    tokenizer = HuggingFaceTokenizer(plain, json.loads(plain.to_str())["decoder"])
    token_ids = [3, 2, 5 + 0xE2, 5 + 0x82, 5 + 0xAC, 3]
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == " aa€ a"


def test_special_and_unknown_tokens_have_no_bytes(tokenizer):
    assert tokenizer.token_bytes(tokenizer.added_token_id("<|im_end|>")) == b""
    assert tokenizer.token_bytes(10_000) == b""


def test_special_tokens_in_the_text_are_recognised(tokenizer):
    assert tokenizer.encode("a<|im_end|>") == [97, tokenizer.added_token_id("<|im_end|>")]


def test_a_decoder_that_needs_context_is_refused(tmp_path):
    plain = build_tokenizer()
    plain.decoder = decoders.WordPiece()
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"tokenizer.json.*WordPiece"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "none"}}'])
def test_a_corrupt_file_is_named(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer.json"):
        load_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}.*tokenizer.json nor tiktoken.model"):
        load_tokenizer(tmp_path)
