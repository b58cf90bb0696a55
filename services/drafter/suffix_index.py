"""An index of texts that finds where the end of a running text occurred before, and what came next there.

For each length in LENGTHS a table maps the hash of an n-gram to the place behind its latest occurrence, and
every place links back to the previous one with the same hash, as LZ77 coders chain theirs. Adding and
forgetting a token take constant time. A search looks at a bounded number of places: long matches first, of
equal ones the latest first.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.drafter.guess import SEPARATOR, Guess, Occurrence, follow

LENGTHS = (16, 8, 4, 2)
MAX_MATCH_LENGTH = 32
MAX_NUM_OCCURRENCES = 24
# Upper bounds for CPython: an empty index, a slot of a table, an entry with its two integers, and a token.
BYTES_PER_INDEX = 2048
BYTES_PER_SLOT = 90
BYTES_PER_ENTRY = BYTES_PER_SLOT + 70
BYTES_PER_TOKEN = 5 * (1 + len(LENGTHS))
_WIDTH = 4


@dataclass(slots=True)
class _Table:
    """N-grams of one length: the latest place by hash, and the distance back to the one before (0: none)."""

    length: int
    latest: dict[int, int] = field(default_factory=dict)
    distances: array = field(default_factory=lambda: array("I"))


class SuffixIndex:
    """A window over a stream of texts: tokens are added at its end and forgotten from its beginning.

    A place counts all tokens ever added, so that it stays valid while older tokens are forgotten.
    """

    __slots__ = ("_forgotten", "_run", "_tables", "tokens")

    def __init__(self) -> None:
        self.tokens = array("I")
        self._tables = tuple(_Table(length) for length in LENGTHS)
        self._forgotten = 0
        self._run = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """An upper estimate of the memory held."""
        entries = sum(len(table.latest) for table in self._tables)
        return BYTES_PER_INDEX + len(self.tokens) * BYTES_PER_TOKEN + entries * BYTES_PER_ENTRY

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens to the text at the end."""
        self.tokens.extend(token_ids)
        for table in self._tables:
            self._add(table, len(token_ids))
        self._run += len(token_ids)

    def _add(self, table: _Table, num_tokens: int) -> None:
        length, latest, distances = table.length, table.latest, table.distances
        num_short = min(num_tokens, max(0, length - 1 - self._run))
        distances.extend([0] * num_short)
        first = len(self.tokens) - num_tokens + num_short - length + 1
        data = self.tokens[max(first, 0) :].tobytes()
        place = self._forgotten + first + length
        for start in range(0, (num_tokens - num_short) * _WIDTH, _WIDTH):
            key = hash(data[start : start + length * _WIDTH])
            distances.append(place - latest.get(key, place))
            latest[key] = place
            place += 1

    def end_text(self) -> None:
        """Ends the text; what is added next belongs to another."""
        self.tokens.append(SEPARATOR)
        for table in self._tables:
            table.distances.append(0)
        self._run = 0

    def forget(self, num_tokens: int) -> None:
        """Forgets the oldest tokens."""
        num_tokens = min(num_tokens, len(self.tokens))
        for table in self._tables:
            data = self.tokens[: num_tokens + table.length - 1].tobytes()
            for start in range(num_tokens):
                key = hash(data[start * _WIDTH : (start + table.length) * _WIDTH])
                if table.latest.get(key) == self._forgotten + start + table.length:
                    del table.latest[key]
            del table.distances[:num_tokens]
            # A dict keeps the room of what it lost; a copy does not.
            if sys.getsizeof(table.latest) > BYTES_PER_SLOT * (len(table.latest) + 1):
                table.latest = dict(table.latest)
        del self.tokens[:num_tokens]
        self._forgotten += num_tokens
        self._run = min(self._run, len(self.tokens))

    def guess(self, context: array, max_num_tokens: int) -> Guess:
        """Guesses what follows `context`, the end of a text, from what followed it here."""
        found: dict[int, Occurrence] = {}
        for table in self._tables:
            if len(context) >= table.length:
                self._search(table, context, found)
        return follow(self.tokens, list(found.values()), max_num_tokens)

    def _search(self, table: _Table, context: array, found: dict[int, Occurrence]) -> None:
        tokens, length = self.tokens, table.length
        suffix = context[-length:]
        offset = table.latest.get(hash(suffix.tobytes()), self._forgotten) - self._forgotten
        for _ in range(2 * MAX_NUM_OCCURRENCES):
            if offset < length or len(found) >= MAX_NUM_OCCURRENCES:
                return
            if offset not in found and offset < len(tokens) and tokens[offset - length : offset] == suffix:
                found[offset] = Occurrence(offset, self._match_length(context, offset, length))
            distance = table.distances[offset - 1]
            if not distance:
                return
            offset -= distance

    def _match_length(self, context: array, offset: int, known: int) -> int:
        limit = min(len(context), offset, MAX_MATCH_LENGTH)
        while known < limit and self.tokens[offset - known - 1] == context[-known - 1]:
            known += 1
        return known
