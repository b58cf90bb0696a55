"""Drafts by a draft head in EAGLE-3 form, out of the hidden vectors that the group sends."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Self

import torch

from outrider.kernels import DRAFTING
from outrider.model.draft_head import FEATURE_DTYPE, DraftHead
from outrider.model.errors import ModelError
from outrider.rpc.config import ConfigError
from services.drafter.draft_head import HeadDrafts, UnreadFeatures
from services.drafter.guess import Guess
from services.drafter.sampled import Text
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question

# Rows of features that one call reads, so that a long prompt holds nobody up.
MAX_NUM_ROWS = 512


class HeadSource:
    """Asks a draft head in the one thread that computes; features are read when a sequence is asked about."""

    name = "head"

    def __init__(self, head: DraftHead, executor: Executor, *, kv_cache_bytes: int) -> None:
        self.feature_size = head.config.network.hidden_size
        self._row_bytes = self.feature_size * FEATURE_DTYPE.itemsize
        self._drafts = HeadDrafts(head, kv_cache_bytes)
        self._executor = executor

    @classmethod
    def load(
        cls,
        head_dir: Path,
        target_dir: Path,
        *,
        kv_cache_bytes: int,
        num_threads: int,
        executor: Executor,
    ) -> Self:
        """Loads the head, and the target's embedding, in the executor's thread and waits for it.

        Raises ConfigError naming the setting that is wrong.
        """
        head = executor.submit(_load, head_dir, target_dir, num_threads).result()
        return cls(head, executor, kv_cache_bytes=kv_cache_bytes)

    def open(self, sequence: RunningSequence) -> None:
        """Needs nothing yet."""

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Needs nothing: tokens are read with their features."""

    async def guess(self, questions: Sequence[Question]) -> list[Guess]:
        """Answers questions in one batch; where features are missing or not read yet, by an empty guess."""
        unread = self._take_features({question.sequence for question in questions})
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._draft, unread, questions
        )

    def _draft(self, unread: Sequence[UnreadFeatures], questions: Sequence[Question]) -> list[Guess]:
        # Long texts take long to copy: the event loop has others to serve.
        return self._drafts.draft(unread, [Text.of(question) for question in questions])

    async def close(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Lets go of a sequence; there is nothing to learn from it."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._drafts.forget, sequence)

    def _take_features(self, sequences: set[RunningSequence]) -> list[UnreadFeatures]:
        """Takes from sequences the features that can be read now, where there are fewest first."""
        waiting = [(self._num_readable(sequence), sequence) for sequence in sequences]
        num_left = MAX_NUM_ROWS
        unread: list[UnreadFeatures] = []
        for num_readable, sequence in sorted(waiting, key=lambda item: (item[0], item[1].id)):
            features, num_rows = sequence.features, min(num_readable, num_left)
            if features is not None and num_rows > 0:
                offset, end = features.offset, features.offset + num_rows
                rows = bytes(features.rows[: num_rows * self._row_bytes])
                next_token_ids = sequence.token_ids[offset + 1 : end + 1]
                unread.append(
                    UnreadFeatures(sequence=sequence, offset=offset, rows=rows, next_token_ids=next_token_ids)
                )
                features.forget_before(end, self._row_bytes)
                num_left -= num_rows
        return unread

    def _num_readable(self, sequence: RunningSequence) -> int:
        """How many features are there whose next token is known."""
        features = sequence.features
        if features is None:
            return 0
        num_known = len(sequence.token_ids) - 1 - features.offset
        return max(0, min(num_known, len(features.rows) // self._row_bytes))


def _load(head_dir: Path, target_dir: Path, num_threads: int) -> DraftHead:
    # A setting of the calling thread.
    torch.set_num_threads(num_threads)
    try:
        return DraftHead.load(head_dir, target_dir, backend=DRAFTING)
    except ModelError as error:
        raise ConfigError(f"OUTRIDER_DRAFTER_HEAD_DIR or OUTRIDER_DRAFTER_TARGET_DIR: {error}") from None
