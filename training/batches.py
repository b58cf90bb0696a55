"""Lays documents out in blocks of rows of one length, so that attention needs no mask.

    block 1: 3 rows of 71     block 2: 5 rows of 118     ...

A document is a row, padded to the longest of its block; sorting by length keeps the padding small.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.chat import special_id
from training.documents import Document, document
from training.network import Block

# A block ends where a document is this much longer than the block's first.
MAX_STRETCH = 1.1
LONG_SHARE, LONG_LENGTH, SHORT_LENGTH = 0.006, 2048, 800
LONG_MAX_NUM_TURNS = 48


@dataclass(frozen=True)
class Batch:
    """Blocks of rows, flattened, [T] each; `target_ids` is -1 where nothing is learnt."""

    token_ids: Tensor
    target_ids: Tensor
    positions: Tensor
    is_real: Tensor
    blocks: list[Block]


def blocks_of(ordered: list[Document]) -> list[list[Document]]:
    """Cuts documents sorted by length into blocks of nearly one length."""
    cut: list[list[Document]] = []
    for item in ordered:
        if not cut or len(item.token_ids) > MAX_STRETCH * len(cut[-1][0].token_ids):
            cut.append([])
        cut[-1].append(item)
    return cut


def lay_out(documents: list[Document], pad_id: int) -> Batch:
    """Sorts documents by length and pads each to the longest of its block."""
    ordered = sorted(documents, key=lambda item: len(item.token_ids))
    token_ids: list[int] = []
    target_ids: list[int] = []
    positions, blocks = [], []
    for rows in blocks_of(ordered):
        length = len(rows[-1].token_ids)
        blocks.append((len(rows), length))
        positions += list(range(length)) * len(rows)
        for row in rows:
            padding = length - len(row.token_ids)
            token_ids += row.token_ids + [pad_id] * padding
            target_ids += (
                [-1] * (row.num_prompt_tokens - 1)
                + row.token_ids[row.num_prompt_tokens :]
                + [-1] * (padding + 1)
            )
    ids = torch.tensor(token_ids)
    return Batch(ids, torch.tensor(target_ids), torch.tensor(positions), ids != pad_id, blocks)


class Batches:
    """An endless stream of batches of about so many tokens, some of them in long conversations."""

    def __init__(self, tokenizer: Tokenizer, rng: Random, num_tokens: int) -> None:
        self.tokenizer, self.rng, self.num_tokens = tokenizer, rng, num_tokens
        self.pad_id = special_id(tokenizer, "[PAD]")
        self.next_document = self.draw()

    def draw(self) -> Document:
        """The next document; one that is too long is replaced."""
        is_long = self.rng.random() < LONG_SHARE
        limit = min(self.num_tokens, LONG_LENGTH if is_long else SHORT_LENGTH)
        while True:
            item = document(self.rng, self.tokenizer, max_num_turns=LONG_MAX_NUM_TURNS if is_long else 3)
            if len(item.token_ids) <= limit:
                return item

    def next(self) -> Batch:
        """Documents up to the number of tokens; the one that goes over it opens the next batch."""
        documents, room = [], self.num_tokens
        while len(self.next_document.token_ids) <= room:
            documents.append(self.next_document)
            room -= len(self.next_document.token_ids)
            self.next_document = self.draw()
        return lay_out(documents, self.pad_id)
