"""Tokenizers described by a tiktoken.model, as Kimi's: ranks; special tokens in tokenizer_config.json."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import tiktoken

from outrider.rpc.config import ConfigError
from services.gateway.model_files import read_json, read_text

NUM_SPECIAL_TOKENS = 256
# The split pattern stands in no file of the checkpoint.
_WORD = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        _WORD + _UPPER + "*" + _LOWER + "+" + _CONTRACTION,
        _WORD + _UPPER + "+" + _LOWER + "*" + _CONTRACTION,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
# The regex backtracks over a run of one kind, in time that grows with its square.
_RUNS = re.compile(r"\s{1,25000}|\S{1,25000}")
_SEGMENT_LENGTH = 400_000


class RankFileTokenizer:
    """A byte-pair encoding by ranks, with Kimi's split pattern."""

    def __init__(self, ranks: dict[bytes, int], added_tokens: dict[int, dict[str, Any]]) -> None:
        """`added_tokens` is tokenizer_config.json's added_tokens_decoder; other special ids are reserved."""
        first = len(ranks)
        specials = {i: f"<|reserved_token_{i}|>" for i in range(first, first + NUM_SPECIAL_TOKENS)}
        specials |= {id_: token["content"] for id_, token in added_tokens.items()}
        self._added = {content: id_ for id_, content in specials.items()}
        self._encoding = tiktoken.Encoding(
            "rank_file", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self._added
        )
        texts = {id_: t["content"].encode() for id_, t in added_tokens.items() if not t.get("special", True)}
        self._bytes = {rank: token for token, rank in ranks.items()} | texts
        self.vocab_size = max(specials) + 1
        self.spellings = frozenset(self._added)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the file and the tokenizer_config.json beside it; raises ConfigError naming the wrong one."""
        try:
            ranks = dict(_parse(line) for line in read_text(path).splitlines() if line)
        except ValueError as error:
            raise ConfigError(f"{path}: not a rank file: {error}") from None
        if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
            raise ConfigError(f"{path}: not a rank file: its {len(ranks)} ranks do not count from 0")
        config_path = path.parent / "tokenizer_config.json"
        try:
            added = read_json(config_path).get("added_tokens_decoder", {})
            return cls(ranks, {int(id_): dict(token) for id_, token in added.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{config_path}: added_tokens_decoder: {error!r}") from None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokenizes; there are no surrounding special tokens to add."""
        return [id_ for part in _segments(text) for id_ in self._encoding.encode(part, allowed_special="all")]

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of text that a token stands for."""
        return self._bytes.get(token_id, b"")

    def added_token_id(self, content: str) -> int | None:
        """Returns the id of an added token."""
        return self._added.get(content)


def _parse(line: str) -> tuple[bytes, int]:
    token, _, rank = line.partition(" ")
    return base64.b64decode(token, validate=True), int(rank)


def _segments(text: str) -> Iterator[str]:
    """Cuts a text where a run of one kind is longer than 25,000, and after 400,000 characters."""
    for start in range(0, len(text), _SEGMENT_LENGTH):
        part = text[start : start + _SEGMENT_LENGTH]
        begin, previous = 0, None
        for run in _RUNS.finditer(part):
            if previous is not None and run[0][0].isspace() == previous:
                yield part[begin : run.start()]
                begin = run.start()
            previous = run[0][0].isspace()
        yield part[begin:]
