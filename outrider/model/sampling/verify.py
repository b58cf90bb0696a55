"""Verification: a draft token is right if and only if it is the model's own token at its position."""

from dataclasses import dataclass
from itertools import accumulate, islice

from torch import Tensor

from outrider.kernels.interface import Verified
from outrider.model.sampling.logprobs import Logprobs, logprobs_of
from outrider.model.sampling.processors import Chain


@dataclass(frozen=True, kw_only=True)
class Output:
    """The tokens a step makes of a sequence: accepted drafts, then the bonus token.

    None: the output, taken up again, was complete before.
    """

    token_ids: list[int]
    num_accepted_tokens: int
    logprobs: list[Logprobs] | None
    forced_token_ids: list[int]
    grammar_complete: bool


@dataclass(frozen=True, kw_only=True)
class NoToken:
    """No token can be chosen: the logits are not finite, or the constraints leave none."""

    finite: bool


def outputs(verified: Verified, logits: Tensor, chains: list[Chain]) -> list[Output | NoToken]:
    """Appends what was verified to the states of the chains; of `logits` only log-probabilities are made.

    A sequence gets what it would get one token at a time: rows behind the first wrong draft do not count, and
    a row without a token ends the output before it. A complete grammar leaves no token, whether the row
    before it was a draft's, this step's last or an earlier run's: there the output ends, and has not failed.
    """
    chosen, num_accepted = verified.tokens.tolist(), verified.num_accepted.tolist()
    finite = verified.finite.tolist()
    firsts = list(accumulate((chain.num_rows for chain in chains), initial=0))
    token_ids = [
        _leading(chosen[first : first + num + 1], chain)
        for first, num, chain in zip(firsts, num_accepted, chains, strict=False)
    ]
    logprobs = _logprobs(logits, chains, firsts, token_ids)
    return [
        _output(chain, tokens, logprobs.get(first))
        if tokens or chain.state.is_complete
        else NoToken(finite=bool(finite[first]))
        for first, chain, tokens in zip(firsts, chains, token_ids, strict=False)
    ]


def _leading(chosen: list[int], chain: Chain) -> list[int]:
    """Returns the accepted tokens and the bonus up to one that stops, is the last allowed, or is none."""
    state, token_ids = chain.state, []
    for token_id in chosen:
        if token_id < 0:
            break
        token_ids.append(token_id)
        if token_id in state.stop_token_ids or len(token_ids) >= state.num_tokens_left:
            break
    return token_ids


def _logprobs(
    logits: Tensor, chains: list[Chain], firsts: list[int], token_ids: list[list[int]]
) -> dict[int, list[Logprobs]]:
    """Returns what the sequences that ask for log-probabilities get, by their first row."""
    asked = [
        (first, chain.state.sampling.num_logprobs, tokens)
        for first, chain, tokens in zip(firsts, chains, token_ids, strict=False)
        if chain.state.sampling.num_logprobs is not None and tokens
    ]
    if not asked:
        return {}
    rows = [first + offset for first, _, tokens in asked for offset in range(len(tokens))]
    num_top = [num_top for _, num_top, tokens in asked for _ in tokens]
    entries = iter(logprobs_of(logits[rows], [token for *_, tokens in asked for token in tokens], num_top))
    return {first: list(islice(entries, len(tokens))) for first, _, tokens in asked}


def _output(chain: Chain, token_ids: list[int], logprobs: list[Logprobs] | None) -> Output:
    state, grammar = chain.state, chain.state.grammar
    state.append(token_ids)
    ended = state.is_complete or token_ids[-1] in state.stop_token_ids or state.num_tokens_left <= 0
    # An output that goes on ends with a token still to be computed: the bonus, or the one before a row
    # without a token, which must be tried again.
    num_accepted = len(token_ids) - 1
    if ended and token_ids == chain.draft[: len(token_ids)]:
        num_accepted = len(token_ids)
    return Output(
        token_ids=token_ids,
        num_accepted_tokens=num_accepted,
        logprobs=logprobs,
        forced_token_ids=grammar.forced_token_ids() if grammar is not None and not ended else [],
        grammar_complete=state.is_complete,
    )
