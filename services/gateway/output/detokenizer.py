"""Tokens to text, one token at a time."""

import codecs

from services.gateway.output.piece import Piece
from services.gateway.tokenizer import Tokenizer


class Detokenizer:
    """Gives text out once it ends in a whole character; until then its tokens are held back, whole."""

    __slots__ = ("_decoder", "_num_tokens", "_text", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._num_tokens = 0

    def push(self, token_id: int) -> Piece | None:
        """Returns the text that the token completes, with all the tokens it belongs to."""
        self._text += self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._num_tokens += 1
        half_a_character, _ = self._decoder.getstate()
        return None if half_a_character else self._take()

    def flush(self) -> Piece | None:
        """Returns what is held back; half a character becomes U+FFFD."""
        self._text += self._decoder.decode(b"", final=True)
        return self._take() if self._num_tokens else None

    def _take(self) -> Piece:
        piece = Piece(num_tokens=self._num_tokens, text=self._text)
        self._text, self._num_tokens = "", 0
        return piece
