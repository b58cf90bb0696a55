"""Keeps clients' text from forging turns: special tokens that are spelled out in it become ordinary text."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outrider.rpc.errors import InvalidArgument

# Private use: no text means anything by them, and no template does anything to them.
_CANDIDATES = range(0x100000, 0x10FFFE)


class PlainText:
    """Breaks spellings of special tokens, after their first character, with one that occurs in no text.

    A template treats it like any other, also where it cuts, joins or quotes: what the template itself writes
    stays whole, and what came from the client stays broken. A text that ends with the beginning of a spelling
    is broken there too, so that no other completes it. Texts may be in lists and mappings.
    """

    def __init__(self, spellings: Collection[str], texts: Any) -> None:
        used: set[str] = set()
        for text in _strings(texts):
            used.update(text)
        self._break = next((chr(code) for code in _CANDIDATES if chr(code) not in used), "")
        if not self._break:
            raise InvalidArgument("uses all characters of private use", field="messages")
        self._spellings = frozenset(spellings)
        self._begun = {text[:length] for text in spellings for length in range(1, len(text))}
        self._lengths = sorted({len(text) for text in spellings})
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in spellings}))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def protect(self, texts: Any, *, except_for: Collection[str] = ()) -> Any:
        """Returns the texts with all spellings broken but those excepted."""
        if isinstance(texts, str):
            return self._protect(texts, except_for)
        if isinstance(texts, Mapping):
            return {
                self._protect(key, except_for): self.protect(text, except_for=except_for)
                for key, text in texts.items()
            }
        if isinstance(texts, list):
            return [self.protect(text, except_for=except_for) for text in texts]
        return texts

    def split(self, rendered: str) -> list[str]:
        """Returns the pieces to tokenize one by one; together they are the text without the breaks."""
        return rendered.split(self._break)

    def _protect(self, text: str, except_for: Collection[str]) -> str:
        places = [match.end() for match in self._first.finditer(text)]
        places = [place for place in places if self._spells(text, place - 1, except_for)]
        return self._break.join(text[i:j] for i, j in zip([0, *places], [*places, None], strict=True))

    def _spells(self, text: str, begin: int, except_for: Collection[str]) -> bool:
        """Returns whether a spelling stands there, or the beginning of one at the text's end."""
        for length in self._lengths:
            spelled = text[begin : begin + length]
            if spelled in self._spellings and spelled not in except_for:
                return True
        return len(text) - begin < self._lengths[-1] and text[begin:] in self._begun


def _strings(texts: Any) -> Iterator[str]:
    if isinstance(texts, str):
        yield texts
    elif isinstance(texts, Mapping):
        for key, text in texts.items():
            yield key
            yield from _strings(text)
    elif isinstance(texts, list):
        for text in texts:
            yield from _strings(text)
