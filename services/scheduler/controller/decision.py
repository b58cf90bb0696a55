"""Whether to verify drafts and how many tokens: what pays beyond doubt, or is worth trying out."""

import math
from dataclasses import dataclass

import numpy as np

from services.scheduler.controller.allocation import most_paying
from services.scheduler.controller.probing import Probing

# Where no more is to be won, as a part of the speed, trying teaches nothing of use.
_LEAST_HOPE = 0.02


@dataclass(frozen=True, slots=True)
class Prospect:
    """What verifying 0, 1, ... positions is expected to bring and to take: [N + 1] each."""

    num_base_tokens: int  # what the step yields anyway
    total: np.ndarray  # accepted tokens
    believed: np.ndarray  # accepted tokens, as far as the sources are trusted
    seconds: np.ndarray
    doubt: np.ndarray  # the relative standard error of seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """How many positions are verified, and the prices at which that was decided."""

    num_positions: int
    token_seconds: float  # per token of a step without drafts
    price_per_draft_token: float  # in tokens


def decide(prospect: Prospect, probing: Probing) -> Decision:
    """Takes what is expected to pay most if it pays even in the bad case, else nothing; or tries more.

    The bad case is one standard error of the times of the step with drafts and of that without.
    """
    base, seconds, believed = prospect.num_base_tokens, prospect.seconds, prospect.believed
    sure = most_paying(base, believed, seconds)
    in_bad_case = seconds[sure] * (1 + math.hypot(prospect.doubt[sure], prospect.doubt[0]))
    if sure and (base + believed[sure]) * seconds[0] <= base * in_bad_case:
        sure = most_paying(base, believed, _in_bad_case(prospect))
    if sure:
        probing.note_paying()
    chosen = _try_more(prospect, sure, probing)
    token_seconds = float(seconds[0]) / base
    price = float(seconds[chosen] - seconds[0]) / token_seconds / max(1, chosen)
    return Decision(chosen, token_seconds, price)


def _in_bad_case(prospect: Prospect) -> np.ndarray:
    """Returns the seconds with drafts a standard error longer than those of the step without."""
    margin = 1 + np.hypot(prospect.doubt, prospect.doubt[0])
    margin[0] = 1.0
    return prospect.seconds * margin


def _try_more(prospect: Prospect, sure: int, probing: Probing) -> int:
    """Returns `sure`, or a probe: a number that might pay better, or one to see if drafts still lose."""
    base, seconds = prospect.num_base_tokens, prospect.seconds
    token_seconds = float(seconds[sure] / (base + prospect.believed[sure]))
    in_good_case = seconds / (1 + prospect.doubt)
    hoped = most_paying(base, prospect.total, in_good_case)
    hope = (base + prospect.total[hoped]) * token_seconds / in_good_case[hoped] - 1
    if hoped != sure and hope > _LEAST_HOPE:
        # Longer drafts are approached step by step.
        candidates = slice(sure + 1, hoped + 1) if hoped > sure else slice(hoped, hoped + 1)
        tried = probing.try_out(_losses(prospect, token_seconds)[candidates], token_seconds)
        return sure if tried is None else candidates.start + tried
    if not sure and probing.is_due:
        return probing.check_again(_losses(prospect, token_seconds), token_seconds)
    return sure


def _losses(prospect: Prospect, token_seconds: float) -> np.ndarray:
    """Returns what each number loses in the bad case against a choice of `token_seconds` per token."""
    return _in_bad_case(prospect) - token_seconds * (prospect.num_base_tokens + prospect.believed)
