"""What decides the tokens of a sequence, resolved: the dataclasses behind outrider/v1/sampling.proto."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from outrider.rpc.errors import InvalidArgument
from outrider.v1 import sampling_pb2 as pb

MAX_NUM_LOGPROBS = 20
# Each costs every step of its sequence. A word that a client gives as text may stand for two token sequences.
MAX_NUM_BAD_WORDS = 1024
MAX_NUM_BAD_WORD_TOKENS = 32
MAX_NUM_BIASES = 1024
# The gateway adds the model's own end tokens.
MAX_NUM_STOP_TOKENS = 256
# 1e-5 as the wire's float32: scores divided by much less leave float32.
MIN_TEMPERATURE = 9.999999747378752e-06


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How logits become tokens and when to stop. The defaults sample the raw distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_reasoning_tokens: int | None = None
    num_logprobs: int | None = None

    def check(self, *, vocab_size: int) -> None:
        """Raises InvalidArgument naming the first field that is out of range."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise InvalidArgument(
                    f"must lie in [{low:g}, {high:g}], is {value:g}", field=f"sampling.{name}"
                )
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidArgument(
                f"must be 0 or at least {MIN_TEMPERATURE:g}, is {self.temperature:g}",
                field="sampling.temperature",
            )
        if self.max_tokens == 0:
            raise InvalidArgument("must be at least 1", field="sampling.max_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidArgument(
                f"is {self.min_tokens}, above max_tokens {self.max_tokens}", field="sampling.min_tokens"
            )
        if (self.num_logprobs or 0) > MAX_NUM_LOGPROBS:
            raise InvalidArgument(f"must be at most {MAX_NUM_LOGPROBS}", field="sampling.num_logprobs")
        _check_counts(self)
        self._check_token_ids(vocab_size)

    def _check_token_ids(self, vocab_size: int) -> None:
        words = [token_id for word in self.bad_words for token_id in word]
        for name, token_ids in (
            ("logit_bias", self.logit_bias),
            ("stop_token_ids", self.stop_token_ids),
            ("bad_words", words),
        ):
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise InvalidArgument(
                        f"token id {token_id} is not below the vocabulary size {vocab_size}",
                        field=f"sampling.{name}",
                    )
        if any(not math.isfinite(bias) or abs(bias) > 1000 for bias in self.logit_bias.values()):
            raise InvalidArgument("biases must lie in [-1000, 1000]", field="sampling.logit_bias")
        if any(not word for word in self.bad_words):
            raise InvalidArgument("must not hold an empty word", field="sampling.bad_words")

    @classmethod
    def from_proto(cls, message: pb.SamplingParams, defaults: Mapping[str, float] | None = None) -> Self:
        """Reads a message; a field that is unset takes its value from `defaults`, else the class's own.

        Raises InvalidArgument for too many words or tokens, before anything is made of them.
        """
        _check_counts(message)
        values: dict = dict(defaults or {})
        values |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
        return cls(
            **values,
            logit_bias=dict(message.logit_bias),
            bad_words=tuple(tuple(word.ids) for word in message.bad_words),
            stop_token_ids=tuple(message.stop_token_ids),
        )

    def to_proto(self) -> pb.SamplingParams:
        """Writes a message with every field set that has a value."""
        scalars = {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None}
        return pb.SamplingParams(
            **scalars,
            logit_bias=self.logit_bias,
            bad_words=[pb.TokenIds(ids=word) for word in self.bad_words],
            stop_token_ids=self.stop_token_ids,
        )


def _check_counts(params: SamplingParams | pb.SamplingParams) -> None:
    for name, limit in _MAX_NUM_ENTRIES.items():
        count = len(getattr(params, name))
        if count > limit:
            raise InvalidArgument(f"has {count} entries, more than {limit}", field=f"sampling.{name}")
    for word in params.bad_words:
        length = len(word.ids if isinstance(word, pb.TokenIds) else word)
        if length > MAX_NUM_BAD_WORD_TOKENS:
            raise InvalidArgument(
                f"a word has {length} tokens, more than {MAX_NUM_BAD_WORD_TOKENS}", field="sampling.bad_words"
            )


_MAX_NUM_ENTRIES = {
    "bad_words": MAX_NUM_BAD_WORDS,
    "logit_bias": MAX_NUM_BIASES,
    "stop_token_ids": MAX_NUM_STOP_TOKENS,
}
_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}
_OPTIONAL = [name for name, item in pb.SamplingParams.DESCRIPTOR.fields_by_name.items() if item.has_presence]


@dataclass(frozen=True, kw_only=True)
class ReasoningLimit:
    """`end_token_id` is forced as output token number `max_tokens` (from 0) unless it was chosen before.

    Where the grammar does not allow it, inside a character, it is forced at the next place that does.
    """

    max_tokens: int
    end_token_id: int


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """What the output must conform to: `language` is json_schema, regex or lark."""

    language: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SequenceParams:
    """Everything that, with the tokens so far, decides the tokens of a sequence."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    choice: int = 0
    reasoning_limit: ReasoningLimit | None = None
    grammar: Grammar | None = None

    @classmethod
    def from_proto(cls, message: pb.SequenceParams) -> Self:
        """Reads a message in which the gateway has resolved every field."""
        limit, language = message.reasoning_limit, message.grammar.WhichOneof("language")
        return cls(
            sampling=SamplingParams.from_proto(message.sampling),
            seed=message.seed,
            choice=message.choice,
            reasoning_limit=ReasoningLimit(max_tokens=limit.max_tokens, end_token_id=limit.end_token_id)
            if message.HasField("reasoning_limit")
            else None,
            grammar=Grammar(language=language, text=getattr(message.grammar, language)) if language else None,
        )

    def to_proto(self) -> pb.SequenceParams:
        """Writes a message."""
        message = pb.SequenceParams(sampling=self.sampling.to_proto(), seed=self.seed, choice=self.choice)
        if self.reasoning_limit is not None:
            message.reasoning_limit.max_tokens = self.reasoning_limit.max_tokens
            message.reasoning_limit.end_token_id = self.reasoning_limit.end_token_id
        if self.grammar is not None:
            setattr(message.grammar, self.grammar.language, self.grammar.text)
        return message
