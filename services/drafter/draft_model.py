"""A small model that writes drafts for many texts at once, one forward pass per place of the draft.

Its guesses agree with the target's choices as often as they can at any temperature: its logits are processed
by the sequence's own parameters and ranked with the noise that the target will use (arXiv 2408.07978). Only
the grammar is left aside: a guess that it forbids is merely wrong. The confidence of a token is its share
against the runner-up alone, p1 / (p1 + p2) of the noised scores.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from outrider.model.batch import ForwardBatch, Span
from outrider.model.sampling import Chain, SamplingState, noised_scores
from outrider.model.transformer import Transformer
from outrider.params import SequenceParams
from outrider.rpc.errors import OutriderError
from services.drafter.guess import Alternatives, Guess
from services.drafter.kv_blocks import BlockTable, KVBlocks
from services.drafter.sequence import RunningSequence

BLOCK_SIZE = 16
# Rows of one forward pass, so that a long prompt holds nobody up: it is caught up over several calls.
MAX_NUM_ROWS = 256
# A token that is less likely to be reached and right is not drafted.
MIN_SURVIVAL = 0.2
# The best of each place: the token drafted and its runners-up.
NUM_BEST = 3
NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The tokens that a draft is to follow: a sequence's final ones, then `num_assumed` others."""

    sequence: RunningSequence
    token_ids: array
    num_assumed: int
    max_num_tokens: int


@dataclass(slots=True, kw_only=True)
class _Line:
    """A text that grows by its draft, token by token."""

    token_ids: array
    state: SamplingState
    table: BlockTable
    max_num_tokens: int
    num_rows: int  # tokens to compute in the next forward pass
    draft: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    survival: float = 1.0

    @property
    def is_caught_up(self) -> bool:
        """Whether the next forward pass computes the last token, so that one can be chosen."""
        return self.table.num_tokens + self.num_rows == len(self.token_ids)

    @property
    def guess(self) -> Guess:
        """The draft as far as it goes; nothing is known of the place behind it where it was not computed."""
        num_missing = len(self.draft) + 1 - len(self.alternatives)
        alternatives = (*self.alternatives, *[()] * num_missing) if self.alternatives else ()
        return Guess(tuple(self.draft), tuple(self.confidences), alternatives=alternatives)

    def take(self, token_ids: list[int], scores: list[float]) -> bool:
        """Takes the best token of the next place unless it is doubtful; returns whether to go on."""
        if scores[0] == NEGATIVE_INFINITY:
            return False
        confidence = 1 / (1 + math.exp(scores[1] - scores[0]))
        shares = _shares(scores)
        if self.survival * confidence < MIN_SURVIVAL:
            self.alternatives.append(tuple(zip(token_ids, shares, strict=True)))
            return False
        self.survival *= confidence
        self.draft.append(token_ids[0])
        self.confidences.append(confidence)
        self.alternatives.append(tuple(zip(token_ids[1:], shares[1:], strict=True)))
        self.token_ids.append(token_ids[0])
        self.state.append(token_ids[:1])
        self.num_rows = 1
        return len(self.draft) < self.max_num_tokens and token_ids[0] not in self.state.stop_token_ids


class DraftModel:
    """A model, its cache and what it knows of each sequence. One thread uses it."""

    def __init__(self, model: Transformer, kv_cache_bytes: int) -> None:
        self._model = model
        num_blocks = max(1, kv_cache_bytes // model.kv_bytes_per_block(BLOCK_SIZE))
        self.blocks = KVBlocks(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self._kv_cache = model.new_kv_cache(num_blocks, BLOCK_SIZE)
        # None: its parameters or tokens are not for this model.
        self._states: dict[RunningSequence, SamplingState | None] = {}

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
        return [lines[place].guess if place in lines else Guess() for place in range(len(texts))]

    def forget(self, sequence: RunningSequence) -> None:
        """Lets go of a sequence."""
        self._states.pop(sequence, None)
        self.blocks.drop(sequence)

    def _begin(self, texts: Sequence[Text], branches: list[BlockTable]) -> dict[int, _Line]:
        """Returns what the first forward pass computes, by place: whatever lacks least comes first."""
        lines: dict[int, _Line] = {}
        taken: set[RunningSequence] = set()
        for place, text in enumerate(texts):
            if (state := self._state_after(text)) is not None:
                lines[place] = self._line(text, state, taken, branches)
        num_left = MAX_NUM_ROWS
        for place, line in sorted(lines.items(), key=lambda item: item[1].num_rows):
            # A branch is of no use to later calls, so it is computed whole or not at all.
            if line.table in branches and line.num_rows > num_left:
                line.num_rows = 0
            line.num_rows = min(line.num_rows, num_left)
            num_tokens = line.table.num_tokens + line.num_rows
            if line.is_caught_up:
                num_tokens += line.max_num_tokens - 1
            if line.num_rows and self.blocks.reserve(line.table, num_tokens):
                num_left -= line.num_rows
            else:
                del lines[place]
        return lines

    def _line(
        self, text: Text, state: SamplingState, taken: set[RunningSequence], branches: list[BlockTable]
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
            state=state,
            table=table,
            max_num_tokens=min(text.max_num_tokens, state.num_tokens_left),
            num_rows=len(text.token_ids) - table.num_tokens,
        )

    def _state_after(self, text: Text) -> SamplingState | None:
        """Returns the state that the text leads to; None if nothing can or need follow it."""
        vocab_size = self._model.config.vocab_size
        if not text.token_ids or np.asarray(text.token_ids).max() >= vocab_size:
            return None
        sequence, num_final = text.sequence, len(text.token_ids) - text.num_assumed
        if sequence not in self._states:
            self._states[sequence] = self._new_state(sequence, text.token_ids[: sequence.num_prompt_tokens])
        state = self._states[sequence]
        if state is None:
            return None
        state.append(text.token_ids[state.num_tokens : num_final].tolist())
        branch = state.branch(text.token_ids[num_final:].tolist())
        has_ended = branch.num_output_tokens > 0 and text.token_ids[-1] in branch.stop_token_ids
        return None if has_ended or min(branch.num_tokens_left, text.max_num_tokens) < 1 else branch

    def _new_state(self, sequence: RunningSequence, prompt: array) -> SamplingState | None:
        try:
            params = replace(SequenceParams.from_proto(sequence.params), grammar=None)
            params.sampling.check(vocab_size=self._model.config.vocab_size)
        except OutriderError:
            return None
        return SamplingState(params, prompt, len(prompt), max_model_len=self._model.config.max_num_positions)

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
            table.token_ids.extend(line.token_ids[start:end])
            line.num_rows = 0
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids.tolist()),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            spans=tuple(spans),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        )
        return self._model.forward(batch, self._kv_cache).logits

    def _choose(self, lines: list[_Line], logits: Tensor) -> list[_Line]:
        """Chooses the next token of each line, and returns the lines that go on."""
        if not lines:
            return []
        scores = noised_scores(logits.nan_to_num_(), [Chain(line.state, []) for line in lines])
        values, indices = scores.topk(min(NUM_BEST, scores.shape[1]))
        return [
            line
            for line, best in zip(lines, zip(values.tolist(), indices.tolist(), strict=True), strict=True)
            if line.take(*_in_order(*best))
        ]


def _in_order(scores: list[float], token_ids: list[int]) -> tuple[list[int], list[float]]:
    """Sorts by falling score; of equal ones the lowest token comes first, as it does in the target."""
    pairs = sorted(zip(scores, token_ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [token_id for _, token_id in pairs], [score for score, _ in pairs]


def _shares(scores: list[float]) -> list[float]:
    """Returns the probability of each score among these."""
    weights = [math.exp(score - scores[0]) for score in scores]
    return [weight / sum(weights) for weight in weights]
