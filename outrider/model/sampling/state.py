"""What choosing tokens needs to know of one sequence: parameters, tokens and what follows from them."""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from outrider.model.sampling.grammar import GrammarState
from outrider.model.sampling.token_counts import TokenCounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outrider.params import SamplingParams, SequenceParams


class SamplingState:
    """One sequence's tokens and parameters; grows with the output and is never computed anew."""

    def __init__(
        self,
        params: SequenceParams,
        token_ids: Iterable[int] | np.ndarray,
        num_prompt_tokens: int,
        *,
        max_model_len: int,
        grammar: GrammarState | None = None,
    ) -> None:
        self.params = params
        self.num_prompt_tokens = num_prompt_tokens
        self.grammar = grammar
        tokens = np.array(token_ids, dtype=np.int32)
        self._tokens = np.concatenate([tokens, np.zeros(64, dtype=np.int32)])
        self.num_tokens = num_prompt_tokens
        self._max_num_tokens = max_model_len
        if params.sampling.max_tokens is not None:
            self._max_num_tokens = min(max_model_len, num_prompt_tokens + params.sampling.max_tokens)
        self.counts = TokenCounts(tokens[:num_prompt_tokens]) if self.has_penalties else None
        self._reasoning_ended = False
        self.append(tokens[num_prompt_tokens:].tolist())

    def branch(self, token_ids: list[int]) -> Self:
        """Returns the state that these tokens lead to, and stays as it is; there must be no grammar."""
        assert self.grammar is None
        branch = copy(self)
        branch._tokens = self._tokens.copy()
        branch.counts = None if self.counts is None else self.counts.copy()
        branch.append(token_ids)
        return branch

    @property
    def sampling(self) -> SamplingParams:
        """How logits become tokens."""
        return self.params.sampling

    @property
    def token_ids(self) -> np.ndarray:
        """All tokens so far, prompt first: a view that the next append may leave behind."""
        return self._tokens[: self.num_tokens]

    @property
    def num_output_tokens(self) -> int:
        """How many of the tokens are output."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_tokens_left(self) -> int:
        """How many more tokens the output may have."""
        return self._max_num_tokens - self.num_tokens

    @property
    def is_complete(self) -> bool:
        """Whether the grammar has ended the output."""
        return self.grammar is not None and self.grammar.is_complete

    def append(self, token_ids: list[int]) -> None:
        """Adds output tokens."""
        end = self.num_tokens + len(token_ids)
        if end > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros(end, dtype=np.int32)])
        self._tokens[self.num_tokens : end] = token_ids
        self.num_tokens = end
        if self.counts is not None:
            for token_id in token_ids:
                self.counts.add(token_id)
        limit = self.params.reasoning_limit
        self._reasoning_ended |= limit is not None and limit.end_token_id in token_ids
        if self.grammar is not None:
            self.grammar.advance(token_ids)

    def is_forced_to_end_reasoning(self, draft: list[int]) -> bool:
        """Tells whether the token after `draft` is the one that the reasoning limit forces.

        A grammar may not allow it there, inside a character: then it is forced at the first place behind.
        """
        limit = self.params.reasoning_limit
        return (
            limit is not None
            and self.num_output_tokens + len(draft) >= limit.max_tokens
            and not self._reasoning_ended
            and limit.end_token_id not in draft
        )

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end the output."""
        return frozenset(self.sampling.stop_token_ids)

    @cached_property
    def has_penalties(self) -> bool:
        """Whether earlier tokens weigh on the scores."""
        sampling = self.params.sampling
        return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
            1,
            0,
            0,
        )

    @cached_property
    def is_plain(self) -> bool:
        """Whether the scores are the logits as they are, at every position."""
        sampling, params = self.params.sampling, self.params
        return not (
            self.has_penalties or sampling.logit_bias or sampling.bad_words or sampling.min_tokens
            or params.reasoning_limit or params.grammar
        )  # fmt: skip

    @cached_property
    def bias(self) -> tuple[np.ndarray, np.ndarray]:
        """The biased tokens and their biases."""
        items = self.params.sampling.logit_bias
        return np.array(list(items), dtype=np.int64), np.array(list(items.values()), dtype=np.float32)

    @cached_property
    def row_parameters(self) -> tuple[float, ...]:
        """All of a row of SamplingRows.parameters but the position."""
        sampling, seed = self.params.sampling, self.params.seed
        return (
            sampling.temperature, sampling.top_k, sampling.top_p,
            math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
            seed & 0xFFFFFFFF, seed >> 32, self.params.choice,
        )  # fmt: skip

    def banned_after(self, draft: list[int]) -> list[int]:
        """Returns what may not follow `draft`: ends of bad words, and stop tokens that come too early."""
        banned: list[int] = []
        sampling = self.params.sampling
        if sampling.bad_words:
            reach = min(self.num_output_tokens, max(map(len, sampling.bad_words)) - 1)
            tail = (*self._tokens[self.num_tokens - reach : self.num_tokens].tolist(), *draft)
            for word in sampling.bad_words:
                # An empty prefix matches any tail, so words of one token are always banned.
                if len(word) - 1 <= len(tail) and tail[len(tail) - len(word) + 1 :] == word[:-1]:
                    banned.append(word[-1])
        if self.num_output_tokens + len(draft) < sampling.min_tokens:
            banned += self.stop_token_ids
        return banned
