"""Who is let in: what can never run or would only wait is refused at the door, never later."""

import math
from datetime import timedelta

from outrider.params import SequenceParams
from outrider.rpc.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from services.scheduler.batch import GroupFacts
from services.scheduler.config import Config
from services.scheduler.fairness import Tenants
from services.scheduler.load import Speed
from services.scheduler.sequence import Sequence

MAX_RETRY_SECONDS = 60.0
# What was accepted before may wait up to so many times the limits: after a crash it is much, and refusing it
# loses work. There is a limit as anybody may call a sequence resumed.
RESUMED_FACTOR = 4


def check_tokens(sequence: Sequence, params: SequenceParams, facts: GroupFacts) -> None:
    """Raises InvalidArgument, naming the field, for a sequence that the group could never run."""
    num_prompt_tokens = sequence.num_prompt_tokens
    if not num_prompt_tokens:
        raise InvalidArgument("must not be empty", field="prompt")
    if num_prompt_tokens >= facts.max_num_tokens:
        raise InvalidArgument(
            f"has {num_prompt_tokens} tokens, which leaves no room in a context of {facts.max_num_tokens}",
            field="prompt",
        )
    if max(sequence.token_ids) >= facts.vocab_size:
        raise InvalidArgument(
            f"token id {max(sequence.token_ids)} is not below the vocabulary size {facts.vocab_size}",
            field="prompt" if max(sequence.token_ids[:num_prompt_tokens]) >= facts.vocab_size else "resume",
        )
    if not 0 < sequence.tenant_weight < math.inf:
        raise InvalidArgument(f"must be positive, is {sequence.tenant_weight:g}", field="tenant_weight")
    params.sampling.check(vocab_size=facts.vocab_size)
    limit = params.reasoning_limit
    if limit is not None and limit.end_token_id >= facts.vocab_size:
        raise InvalidArgument("end_token_id is outside the vocabulary", field="reasoning_limit")
    if not sequence.stop_token_ids.isdisjoint(sequence.token_ids[num_prompt_tokens:-1]):
        raise InvalidArgument("holds a stop token before its end", field="resume")


def check_load(
    sequence: Sequence,
    timeout: float | None,
    config: Config,
    tenants: Tenants,
    speed: Speed,
    *,
    was_accepted: bool = False,
) -> None:
    """Raises if too many wait already or the deadline cannot be met; what was accepted has more room."""
    was_accepted |= bool(sequence.num_resumed_tokens)
    if _is_full(sequence, config, tenants, factor=RESUMED_FACTOR if was_accepted else 1):
        delay = _seconds_for(tenants.num_waiting_tokens, speed)
        raise ResourceExhausted(
            f"{tenants.num_waiting} requests wait already",
            retry_delay=timedelta(seconds=min(max(delay or 1.0, 1.0), MAX_RETRY_SECONDS)),
        )
    if was_accepted:
        return
    # Only its own tenant's sequences are certain to go first, and only their known tokens to be computed.
    delay = _seconds_for(tenants.account(sequence.tenant).num_waiting_tokens + sequence.num_tokens, speed)
    if timeout is not None and delay is not None and delay > timeout:
        raise DeadlineExceeded(
            f"the first token would take {delay:.1f} s, the deadline is in {timeout:.1f} s"
        )


def _is_full(sequence: Sequence, config: Config, tenants: Tenants, *, factor: float) -> bool:
    """Returns whether the places are taken, and those that its tenant has a right to as well.

    The places are anybody's while some are free. Then each tenant has a right to its share of as many, so one
    that was there first keeps none out; all together wait in 1 + 1/2 + 1/3 ... times as many at most.
    """
    own = tenants.account(sequence.tenant)
    return all(
        num_waiting + 1 > factor * share * config.max_num_waiting
        or num_tokens + sequence.num_tokens > factor * share * config.max_num_waiting_tokens
        for num_waiting, num_tokens, share in (
            (tenants.num_waiting, tenants.num_waiting_tokens, 1.0),
            (len(own.waiting), own.num_waiting_tokens, tenants.share_of(sequence)),
        )
    )


def _seconds_for(num_tokens: int, speed: Speed) -> float | None:
    """Returns the time that computing so many tokens takes, None before it was measured."""
    rows_per_second = speed.rows_per_second.value
    return num_tokens / rows_per_second if rows_per_second else None
