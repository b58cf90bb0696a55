"""What one request may ask for at most."""

from collections.abc import Iterable

from outrider.rpc.errors import InvalidArgument
from services.gateway.config import Limits
from services.gateway.messages import Options

MAX_REQUEST_ID_LENGTH = 128


def check_options(options: Options, limits: Limits) -> None:
    """Raises InvalidArgument naming the option of which there is too much, or an empty one."""
    if len(options.stop) > limits.max_stop_strings:
        raise InvalidArgument(f"has more than {limits.max_stop_strings} strings", field="options.stop")
    for i, stop in enumerate(options.stop):
        if not 0 < len(stop) <= limits.max_stop_string_length:
            raise InvalidArgument(
                f"must have 1 to {limits.max_stop_string_length} characters", field=f"options.stop[{i}]"
            )
    if len(options.bad_words) > limits.max_bad_words:
        raise InvalidArgument(f"has more than {limits.max_bad_words} strings", field="options.bad_words")
    if "" in options.bad_words:
        raise InvalidArgument("holds an empty string", field="options.bad_words")
    if len(options.request_id) > MAX_REQUEST_ID_LENGTH:
        raise InvalidArgument(f"longer than {MAX_REQUEST_ID_LENGTH} characters", field="options.request_id")


def check_token_ids(token_ids: Iterable[int], vocab_size: int, field: str) -> None:
    """Raises InvalidArgument naming the first id that is not in the vocabulary."""
    for i, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            raise InvalidArgument(
                f"token id {token_id} is not below the vocabulary size {vocab_size}", field=f"{field}[{i}]"
            )


def check_resumed(token_ids: tuple[int, ...], *, vocab_size: int, max_tokens: int) -> None:
    """Raises InvalidArgument for resumed tokens that no answer can have: they are untrusted input."""
    check_token_ids(token_ids, vocab_size, "options.resume.token_ids")
    if len(token_ids) > max_tokens:
        raise InvalidArgument(
            f"has {len(token_ids)} tokens, above max_tokens {max_tokens}", field="options.resume.token_ids"
        )
