"""A draft head that writes drafts for many texts at once, one pass per place of the draft.

What it knows of a sequence are rows in its cache, one for each token's feature together with the token after
it. A draft begins behind the last final token, so the features must reach the token before that one. Assumed
and drafted tokens have no features: there the head's own output takes their place, in a branch that ends with
the call. Features are read once; a sequence whose rows were evicted, or that lacks some features, begins anew
with those that come next.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.model.batch import ForwardBatch, Span
from outrider.model.draft_head import FEATURE_DTYPE, DraftHead
from services.drafter.guess import Guess
from services.drafter.kv_blocks import BlockTable, KVBlocks
from services.drafter.sampled import GrowingDraft, SamplingStates, Text, grow
from services.drafter.sequence import RunningSequence

BLOCK_SIZE = 16
# Nothing that the head computes limits the length of a text; the target does.
MAX_TEXT_LENGTH = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFeatures:
    """Features of the tokens from `offset` on, and behind each the token that comes after its own."""

    sequence: RunningSequence
    offset: int
    rows: bytes
    next_token_ids: array


@dataclass(slots=True)
class _Rows:
    """Rows of a text in the cache, and those to compute next: features and the tokens behind theirs."""

    table: BlockTable
    features: Tensor  # [n, D]
    token_ids: array


@dataclass(slots=True)
class _Read:
    """From which token's feature on a sequence has been read, and what came of the last row."""

    offset: int
    hidden: Tensor  # [D]


@dataclass(slots=True)
class _Line:
    """A draft that grows behind a branch of its sequence's rows, and the tokens to be read before it can."""

    draft: GrowingDraft
    branch: BlockTable
    hidden: Tensor  # [D]
    unread: list[int]


class HeadDrafts:
    """A head, its cache and what it knows of each sequence. One thread uses it."""

    def __init__(self, head: DraftHead, kv_cache_bytes: int) -> None:
        self._head = head
        num_blocks = max(1, kv_cache_bytes // head.kv_bytes_per_block(BLOCK_SIZE))
        self.blocks = KVBlocks(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self._kv_cache = head.new_kv_cache(num_blocks, BLOCK_SIZE)
        vocab_size = head.config.network.vocab_size
        self._vocab_size = vocab_size
        self._states = SamplingStates(vocab_size=vocab_size, max_model_len=MAX_TEXT_LENGTH)
        self._read: dict[RunningSequence, _Read] = {}

    @torch.inference_mode()
    def draft(self, unread: Sequence[UnreadFeatures], texts: Sequence[Text]) -> list[Guess]:
        """Reads features, then returns a draft for each text; an empty one where features are missing."""
        self.blocks.begin()
        self._take_in(unread)
        lines: dict[int, _Line] = {}
        try:
            for place, text in enumerate(texts):
                if (line := self._begin(text)) is not None:
                    lines[place] = line
            running = list(lines.values())
            while running := self._grow(running):
                self._read_next(running)
        finally:
            for line in lines.values():
                self.blocks.release(line.branch)
        return [lines[place].draft.guess if place in lines else Guess() for place in range(len(texts))]

    def forget(self, sequence: RunningSequence) -> None:
        """Lets go of a sequence."""
        self._read.pop(sequence, None)
        self._states.forget(sequence)
        self.blocks.drop(sequence)

    def _take_in(self, unread: Sequence[UnreadFeatures]) -> None:
        """Computes the rows of unread features, all in one pass."""
        found = [(item, rows) for item in unread if (rows := self._rows_of(item)) is not None]
        if found:
            hidden = self._forward([rows for _, rows in found])
            for (item, _), row in zip(found, hidden, strict=True):
                self._read[item.sequence].hidden = row.clone()

    def _rows_of(self, unread: UnreadFeatures) -> _Rows | None:
        """Returns what is to be computed; None if there is nothing new, or no room."""
        sequence, table = unread.sequence, self.blocks.take(unread.sequence)
        features = torch.frombuffer(bytearray(unread.rows), dtype=FEATURE_DTYPE)
        features = features.view(len(unread.next_token_ids), -1).to(self._head.device, self._head.dtype)
        read = self._read.get(sequence)
        num_known = read.offset + table.num_tokens - unread.offset if read and table.num_tokens else -1
        if num_known < 0:
            # There is a gap, or the rows were evicted.
            self.blocks.roll_back(table, array("I"))
            self._read[sequence] = _Read(unread.offset, features[0])
            num_known = 0
        token_ids = unread.next_token_ids[num_known:]
        if not token_ids or max(token_ids) >= self._vocab_size:
            return None
        if not self.blocks.reserve(table, table.num_tokens + len(token_ids)):
            self.forget(sequence)
            return None
        return _Rows(table, features[num_known:], token_ids)

    def _begin(self, text: Text) -> _Line | None:
        """Returns a draft's begin in a branch of its own; None if features are missing, or room."""
        read, table = self._read.get(text.sequence), self.blocks.take(text.sequence)
        num_final = len(text.token_ids) - text.num_assumed
        if read is None or not table.num_tokens or read.offset + table.num_tokens != num_final - 1:
            return None
        draft = self._states.begin(text)
        if draft is None:
            return None
        branch = self.blocks.fork(table, table.token_ids)
        if not self.blocks.reserve(branch, table.num_tokens + text.num_assumed + draft.max_num_tokens - 1):
            self.blocks.release(branch)
            return None
        self._copy_end(table, branch)
        return _Line(draft, branch, read.hidden, text.token_ids[num_final:].tolist())

    def _copy_end(self, table: BlockTable, branch: BlockTable) -> None:
        """Copies the rows behind the whole blocks, which are shared: they cannot be computed again."""
        first, last = branch.num_tokens, table.num_tokens
        (cache,) = self._kv_cache.layers
        cache[branch.slots(first, last)] = cache[table.slots(first, last)]
        branch.token_ids.extend(table.token_ids[first:])

    def _grow(self, lines: list[_Line]) -> list[_Line]:
        """Takes the next token of the drafts whose texts are read; returns the lines with tokens to read."""
        ready = [line for line in lines if not line.unread]
        if ready:
            logits = self._head.logits(torch.stack([line.hidden for line in ready]))
            for line, goes_on in zip(ready, grow([line.draft for line in ready], logits), strict=True):
                line.unread += line.draft.token_ids[-1:] if goes_on else ()
        return [line for line in lines if line.unread]

    def _read_next(self, lines: list[_Line]) -> None:
        """Reads one token of each line with the head's own output for a feature."""
        rows = [_Rows(line.branch, line.hidden[None], array("I", [line.unread.pop(0)])) for line in lines]
        for line, hidden in zip(lines, self._forward(rows), strict=True):
            line.hidden = hidden

    def _forward(self, parts: Sequence[_Rows]) -> Tensor:
        """Computes rows, for which there is room, and returns the head's output of each part's last."""
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for part in parts:
            table, num_rows = part.table, len(part.token_ids)
            start, end = table.num_tokens, table.num_tokens + num_rows
            block_ids = table.block_ids[: -(-end // BLOCK_SIZE)]
            spans.append(
                Span(first_row=len(positions), num_rows=num_rows, num_context=end, block_ids=block_ids)
            )
            positions += range(start, end)
            slots += table.slots(start, end)
        token_ids = [token_id for part in parts for token_id in part.token_ids]
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            spans=tuple(spans),
            logit_rows=torch.tensor([span.first_row + span.num_rows - 1 for span in spans]),
        )
        hidden = self._head.forward(batch, torch.cat([part.features for part in parts]), self._kv_cache)
        for part in parts:
            part.table.token_ids.extend(part.token_ids)
        return hidden
