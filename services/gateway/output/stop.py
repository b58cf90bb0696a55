"""Stop strings, wherever the tokens cut them."""

from collections.abc import Sequence

from services.gateway.output.piece import Piece, join


class StopMatcher:
    """Holds back text that may be the beginning of a stop string, with its tokens, until that is decided."""

    __slots__ = ("_held", "_stop_strings", "found")

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._held: list[Piece] = []
        # The stop string that ended the text.
        self.found: str | None = None

    def push(self, piece: Piece) -> list[Piece]:
        """Returns the pieces that are decided; once a stop string is complete, the text before it.

        Among stop strings that one piece completes, the one that begins first counts, then that named first.
        """
        if not self._stop_strings:
            return [piece]
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        begins = [(text.find(stop), i) for i, stop in enumerate(self._stop_strings) if stop in text]
        if begins:
            begin, index = min(begins)
            self.found = self._stop_strings[index]
            num_tokens = join(self.flush()).num_tokens
            return [Piece(num_tokens=num_tokens, text=text[:begin])]
        return self._release(len(text) - self._num_undecided(text))

    def flush(self) -> list[Piece]:
        """Returns all that is held back: no stop string was begun."""
        held, self._held = self._held, []
        return held

    def _num_undecided(self, text: str) -> int:
        """Returns the length of the longest end of `text` that begins a stop string."""
        longest = max(map(len, self._stop_strings)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0

    def _release(self, num_characters: int) -> list[Piece]:
        end, num_pieces = 0, 0
        for piece in self._held:
            end += len(piece.text)
            if end > num_characters:
                break
            num_pieces += 1
        released, self._held = self._held[:num_pieces], self._held[num_pieces:]
        return released
