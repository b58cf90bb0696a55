"""Grammars that the output must conform to, compiled by llguidance for one tokenizer."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np

from outrider.grammar_limits import GRAMMAR_LIMITS, MAX_NUM_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from outrider.params import Grammar

_MAX_NUM_CACHED = 64


class GrammarError(Exception):
    """The grammar does not compile, or is too large."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps the latest: matchers copy faster than they are made.

    Copies share a lexer, which stays broken once a step has spent its limits.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int) -> None:
        tokenizer, end = _with_end_token(json.loads(tokenizer_json))
        num_tokens = max(vocab_size, end + 1)
        self._tokenizer = llguidance.LLTokenizer(json.dumps(tokenizer), n_vocab=num_tokens, eos_token=end)
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()

    def compile(self, grammar: Grammar, stop_token_ids: Iterable[int]) -> GrammarState:
        """Returns the state before the first output token. Raises GrammarError."""
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._compiled[grammar] = self._matcher(grammar)
            if len(self._compiled) > _MAX_NUM_CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarState(
            matcher.deep_copy(), self._tokenizer.eos_token, stop_token_ids, lambda: self._anew(grammar)
        )

    def _anew(self, grammar: Grammar) -> llguidance.LLMatcher:
        """Returns a matcher that shares nothing, and shares the broken one no more."""
        self._compiled.pop(grammar, None)
        return self._matcher(grammar)

    def _matcher(self, grammar: Grammar) -> llguidance.LLMatcher:
        if len(grammar.text) > MAX_NUM_CHARACTERS:
            raise GrammarError(f"has {len(grammar.text)} characters, more than {MAX_NUM_CHARACTERS}")
        limits = llguidance.LLParserLimits(**GRAMMAR_LIMITS)
        matcher = llguidance.LLMatcher(self._tokenizer, _source(grammar), log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"does not compile: {matcher.get_error()}")
        return matcher


def _with_end_token(tokenizer: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Adds an end token that no model emits: which tokens stop is each sequence's own affair."""
    added = tokenizer["added_tokens"]
    token_id = max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in added)]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    end = {"id": token_id, "content": "<|end_of_grammar|>", "special": True, **flags}
    return tokenizer | {"added_tokens": [*added, end]}, token_id


def _source(grammar: Grammar) -> str:
    if grammar.language == "regex":
        return llguidance.LLMatcher.grammar_from_regex(grammar.text)
    if grammar.language == "lark":
        return llguidance.LLMatcher.grammar_from_lark(grammar.text)
    try:
        schema = json.loads(grammar.text)
        # Free white space invites a model to emit it for ever.
        return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    except ValueError as error:
        raise GrammarError(f"is not a JSON schema: {error}") from None


class GrammarState:
    """How far one sequence's output has come in its grammar."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        end_token_id: int,
        stop_token_ids: Iterable[int],
        anew: Callable[[], llguidance.LLMatcher],
    ) -> None:
        self._matcher = matcher
        self._anew = anew
        self._token_ids: list[int] = []
        # Whether the limits, rather than what the grammar says, leave no token.
        self.is_too_costly = False
        # It may lie behind the vocabulary or in its unused tail.
        self._end_token_id = end_token_id
        self._stop_token_ids = frozenset(stop_token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow: such an output has ended, and takes no stop token either."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def advance(self, token_ids: list[int]) -> None:
        """Takes output tokens. One that the grammar does not allow leaves a state that allows none."""
        for token_id in token_ids:
            if not self._ends_with(token_id):
                self._token_ids.append(token_id)
                self._matcher.consume_token(token_id)

    def forced_token_ids(self) -> list[int]:
        """Returns the canonical tokens of the bytes that must come next."""
        return [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def forbidden_along(self, draft: list[int], vocab_size: int) -> np.ndarray:  # [n, V] bool
        """Returns what may not come next, now and after each draft token up to the first not allowed.

        Limits may be spent on a wrong draft, or by another sequence: that counts for nothing. A sequence has
        failed if a matcher that has seen its tokens alone spends them; then nothing may come next.
        """
        masks = self._walk(draft, vocab_size)
        if self._matcher.is_error():
            self._matcher = self._anew()
            is_output_allowed = self._matcher.consume_tokens(self._token_ids)
            # No draft is tried: behind its first row the output ends, to go on from there in the next step.
            nothing = np.ones(vocab_size, dtype=bool)
            masks = [self._forbidden(vocab_size), *(nothing for _ in draft)]
            self.is_too_costly = is_output_allowed and self._matcher.is_error()
        return np.stack(masks)

    def _walk(self, draft: list[int], vocab_size: int) -> list[np.ndarray]:
        masks = [self._forbidden(vocab_size)]
        num_taken = 0
        for token_id in draft:
            if self._ends_with(token_id) or self._matcher.try_consume_tokens([token_id]) == 0:
                break
            num_taken += 1
            masks.append(self._forbidden(vocab_size))
        if num_taken:
            self._matcher.rollback(num_taken)
        return masks

    def _ends_with(self, token_id: int) -> bool:
        return token_id in self._stop_token_ids and self._matcher.is_accepting()

    def _forbidden(self, vocab_size: int) -> np.ndarray:  # [V] bool
        forbidden = np.ones(vocab_size, dtype=bool)
        if not self._matcher.is_stopped():
            words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            forbidden = np.unpackbits(words, count=vocab_size, bitorder="little") == 0
            forbidden[self._end_token_id : self._end_token_id + 1] = True
            if self._matcher.is_accepting():
                forbidden[list(self._stop_token_ids)] = False
        if self._matcher.is_error():
            forbidden[:] = True
        return forbidden
