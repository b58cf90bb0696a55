"""A small model that writes drafts for many texts at once, one forward pass per place of the draft."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from opentelemetry.trace import INVALID_SPAN
from torch import Tensor

from outrider.model.batch import ForwardBatch, Span
from outrider.model.transformer import Transformer
from outrider.params import SamplingParams, SequenceParams
from services.drafter.guess import Guess
from services.drafter.kv_blocks import BlockTable, KVBlocks
from services.drafter.sampled import GrowingDraft, SamplingStates, Text, grow
from services.drafter.sequence import RunningSequence

BLOCK_SIZE = 16
# Rows of one forward pass, so that a long prompt holds nobody up: it is caught up over several calls.
MAX_NUM_ROWS = 256


@dataclass(slots=True, kw_only=True)
class _Line:
    """A text that grows by its draft, and the blocks it is cached in."""

    token_ids: array
    draft: GrowingDraft
    table: BlockTable
    num_rows: int  # tokens to compute in the next forward pass

    @property
    def is_caught_up(self) -> bool:
        """Whether the next forward pass computes the last token, so that one can be chosen."""
        return self.table.num_tokens + self.num_rows == len(self.token_ids)

    def note_computed(self) -> None:
        """Takes the rows of the pass that is done as cached."""
        start = self.table.num_tokens
        self.table.token_ids.extend(self.token_ids[start : start + self.num_rows])
        self.num_rows = 0

    def go_on(self) -> None:
        """Adds the token that was chosen last, to be computed next."""
        self.token_ids.append(self.draft.token_ids[-1])
        self.num_rows = 1


class DraftModel:
    """A model, its cache and what it knows of each sequence. One thread uses it."""

    def __init__(self, model: Transformer, kv_cache_bytes: int) -> None:
        self._model = model
        num_blocks = max(1, kv_cache_bytes // model.kv_bytes_per_block(BLOCK_SIZE))
        self.blocks = KVBlocks(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self._kv_cache = model.new_kv_cache(num_blocks, BLOCK_SIZE)
        self._states = SamplingStates(
            vocab_size=model.config.vocab_size, max_model_len=model.config.max_num_positions
        )

    @torch.inference_mode()
    def draft(self, texts: Sequence[Text]) -> list[Guess]:
        """Returns a draft for each text, in their order; an empty one where a text is not caught up yet."""
        self.blocks.begin()
        branches: list[BlockTable] = []
        try:
            lines = self._begin(texts, branches)
            running = list(lines.values())
            while running:
                logits = self._forward(running)
                running = self._choose([line for line in running if line.is_caught_up], logits)
        finally:
            for branch in branches:
                self.blocks.release(branch)
        return [lines[place].draft.guess if place in lines else Guess() for place in range(len(texts))]

    def warm_up(self) -> None:
        """Makes a draft of no consequence: libraries prepare themselves on first use, which takes long."""
        params = SequenceParams(sampling=SamplingParams(repetition_penalty=1.1))
        sequence = RunningSequence(
            id=0, tenant="", num_prompt_tokens=1, params=params.to_proto(), span=INVALID_SPAN
        )
        for num_tokens in (1, BLOCK_SIZE):
            token_ids = array("I", [0] * num_tokens)
            self.draft([Text(sequence=sequence, token_ids=token_ids, num_assumed=0, max_num_tokens=2)])
        self.forget(sequence)

    def forget(self, sequence: RunningSequence) -> None:
        """Lets go of a sequence."""
        self._states.forget(sequence)
        self.blocks.drop(sequence)

    def _begin(self, texts: Sequence[Text], branches: list[BlockTable]) -> dict[int, _Line]:
        """Returns what the first forward pass computes, by place: whatever lacks least comes first."""
        lines: dict[int, _Line] = {}
        taken: set[RunningSequence] = set()
        for place, text in enumerate(texts):
            draft = self._states.begin(text)
            if draft is not None:
                lines[place] = self._line(text, draft, taken, branches)
        num_left = MAX_NUM_ROWS
        for place, line in sorted(lines.items(), key=lambda item: item[1].num_rows):
            # A branch is of no use to later calls, so it is computed whole or not at all.
            if line.table in branches and line.num_rows > num_left:
                line.num_rows = 0
            line.num_rows = min(line.num_rows, num_left)
            num_tokens = line.table.num_tokens + line.num_rows
            if line.is_caught_up:
                num_tokens += line.draft.max_num_tokens - 1
            if line.num_rows and self.blocks.reserve(line.table, num_tokens):
                num_left -= line.num_rows
                continue
            del lines[place]
            if line.num_rows and line.table not in branches:
                # It must not hold the blocks that others lack, or nobody would ever get any.
                self.blocks.drop(texts[place].sequence)
        return lines

    def _line(
        self, text: Text, draft: GrowingDraft, taken: set[RunningSequence], branches: list[BlockTable]
    ) -> _Line:
        """Returns a line; the first of a sequence goes on where the last call left off, others branch off."""
        table = self.blocks.take(text.sequence)
        # The last token is computed in any case: what follows it is asked.
        cached = text.token_ids[:-1]
        if text.sequence in taken:
            table = self.blocks.fork(table, cached)
            branches.append(table)
        else:
            taken.add(text.sequence)
            self.blocks.roll_back(table, cached)
        return _Line(
            token_ids=text.token_ids,
            draft=draft,
            table=table,
            num_rows=len(text.token_ids) - table.num_tokens,
        )

    def _forward(self, lines: list[_Line]) -> Tensor:
        """Computes the next rows of all lines, and returns the logits behind those that are caught up."""
        token_ids = array("I")
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        logit_rows: list[int] = []
        for line in lines:
            table, first_row = line.table, len(token_ids)
            start, end = table.num_tokens, table.num_tokens + line.num_rows
            if line.is_caught_up:
                logit_rows.append(first_row + line.num_rows - 1)
            token_ids += line.token_ids[start:end]
            positions += range(start, end)
            slots += table.slots(start, end)
            block_ids = table.block_ids[: -(-end // BLOCK_SIZE)]
            spans.append(
                Span(first_row=first_row, num_rows=line.num_rows, num_context=end, block_ids=block_ids)
            )
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids.tolist()),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            spans=tuple(spans),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        )
        logits = self._model.forward(batch, self._kv_cache).logits
        for line in lines:
            line.note_computed()
        return logits

    def _choose(self, lines: list[_Line], logits: Tensor) -> list[_Line]:
        """Chooses the next token of each line, and returns the lines that go on."""
        goes_on = grow([line.draft for line in lines], logits)
        running = [line for line, goes in zip(lines, goes_on, strict=True) if goes]
        for line in running:
            line.go_on()
        return running
