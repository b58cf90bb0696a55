"""Tokenizers described by a tokenizer.json."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import tokenizers

from outrider.rpc.config import ConfigError
from services.gateway.model_files import read_text

_BAR = re.compile("[|\uff5c]")
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class HuggingFaceTokenizer:
    """A tokenizer.json whose decoder works token by token: byte-level, or pieces with byte fallback."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, decoder: dict[str, Any] | None) -> None:
        """Raises ValueError for a decoder whose text depends on more than the token itself."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._bytes = _byte_table(tokenizer, _token_to_bytes(_flatten(decoder)))
        self._added = {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self.vocab_size = len(self._bytes)
        added = tokenizer.get_added_tokens_decoder().values()
        self.spellings = frozenset(t.content for t in added if t.special or _BAR.search(t.content))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file; raises ConfigError naming it."""
        text = read_text(path)
        # The library raises plain exceptions of its own.
        try:
            return cls(tokenizers.Tokenizer.from_str(text), json.loads(text).get("decoder"))
        except Exception as error:
            raise ConfigError(f"{path}: {error}") from None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokenizes."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of text that a token stands for."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def added_token_id(self, content: str) -> int | None:
        """Returns the id of an added token."""
        return self._added.get(content)


def _byte_table(tokenizer: tokenizers.Tokenizer, to_bytes: Callable[[str], bytes]) -> list[bytes]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        table[token_id] = to_bytes(token)
    for token_id, added in tokenizer.get_added_tokens_decoder().items():
        table[token_id] = b"" if added.special else added.content.encode()
    return table


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _token_to_bytes(decoders: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """Returns what the decoders make of one token in the middle of a text.

    Strip is left out: it takes the space before the first piece, and output never begins a text.
    """
    kinds = {decoder["type"] for decoder in decoders}
    if "ByteLevel" in kinds:
        return _byte_level()
    if not kinds or kinds - {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        raise ValueError(f"a decoder of type {', '.join(sorted(kinds)) or 'none'} is not supported")
    replacements = [(d["pattern"]["String"], d["content"]) for d in decoders if d["type"] == "Replace"]
    replacements += [(d["replacement"], " ") for d in decoders if d["type"] == "Metaspace"]

    def to_bytes(token: str) -> bytes:
        if match := _FALLBACK.fullmatch(token):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return to_bytes


def _byte_level() -> Callable[[str], bytes]:
    """Returns the inverse of GPT-2's map from bytes to characters: invisible ones move to U+0100 and up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}

    def to_bytes(token: str) -> bytes:
        return bytes(table[char] for char in token) if all(c in table for c in token) else token.encode()

    return to_bytes
