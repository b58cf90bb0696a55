"""What decides the tokens, resolved: the client's wishes, then the gateway's settings, then the model's."""

import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from outrider.params import ReasoningLimit, SamplingParams
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import sampling_pb2
from services.gateway.messages import Options
from services.gateway.tokenizer import Tokenizer

# JSON keeps integers below this.
_SEED_LIMIT = 2**53


def resolve_sampling(
    message: sampling_pb2.SamplingParams,
    *,
    defaults: Mapping[str, float],
    bad_words: Iterable[tuple[int, ...]],
    end_token_ids: Iterable[int],
    num_tokens_left: int,
    vocab_size: int,
) -> SamplingParams:
    """Fills in what is unset. `num_tokens_left` is what the context leaves for the output.

    Raises InvalidArgument naming the field that is out of range.
    """
    with _naming("options.sampling.bad_words"):
        wished = SamplingParams.from_proto(message, defaults)
        wished.check(vocab_size=vocab_size)
    end_token_ids = () if wished.ignore_eos else end_token_ids
    resolved = dataclasses.replace(
        wished,
        bad_words=(*wished.bad_words, *bad_words),
        stop_token_ids=tuple(dict.fromkeys((*wished.stop_token_ids, *end_token_ids))),
        max_tokens=min(wished.max_tokens or num_tokens_left, num_tokens_left),
    )
    with _naming("options.bad_words"):
        resolved.check(vocab_size=vocab_size)
    return resolved


@contextmanager
def _naming(bad_words: str) -> Iterator[None]:
    """Names fields as the client knows them; `bad_words` is where these came from."""
    try:
        yield
    except InvalidArgument as error:
        field = bad_words if error.field == "sampling.bad_words" else f"options.{error.field}"
        raise InvalidArgument(error.message, field=field) from None


def resolve_seed(options: Options) -> int:
    """Returns the seed of the answer that is resumed, the client's, or one drawn at random."""
    if options.resume is None:
        return secrets.randbelow(_SEED_LIMIT) if options.seed is None else options.seed
    if options.seed not in (None, options.resume.seed):
        raise InvalidArgument("differs from options.resume.seed", field="options.seed")
    return options.resume.seed


def resolve_reasoning_limit(
    sampling: SamplingParams, *, thinking: bool, think_end_id: int | None
) -> ReasoningLimit | None:
    """Returns the limit if one is asked for and the prompt leaves the model thinking."""
    if sampling.max_reasoning_tokens is None or not thinking or think_end_id is None:
        return None
    return ReasoningLimit(max_tokens=sampling.max_reasoning_tokens, end_token_id=think_end_id)


def tokenize_bad_words(words: Iterable[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Returns the token sequences of strings that must not appear: as they stand, and after a space."""
    sequences = (tuple(tokenizer.encode(start + word)) for word in words for start in ("", " "))
    return list(dict.fromkeys(sequence for sequence in sequences if sequence))
