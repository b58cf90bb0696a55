"""Judges drafts: what they are worth, whom to ask for them, how many tokens to verify.

An offer is any object with a `source` of SOURCES, `confidences`, one per token, a `match_length` and a
`phase` of PHASES. Names that are of neither raise ValueError, and so do numbers that cannot be: what is not
finite, seconds below 0, more tokens accepted than verified.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

SOURCES: tuple[str, ...]
PHASES: tuple[str, ...]
NUM_TERMS: int
MAX_WEIGHT: float
"""No term of a fit is dearer than this."""

class _Offer(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def confidences(self) -> Sequence[float]: ...
    @property
    def match_length(self) -> int: ...
    @property
    def phase(self) -> str: ...

class Record:
    """The recent past of one sequence; the scheduler keeps it, the controller alone reads and writes it."""

    def __init__(self) -> None: ...

class Drafts:
    """One draft for each of some sequences, as far as it may be verified."""

    def __init__(self, drafts: Sequence[tuple[Record, _Offer, int]]) -> None:
        """Reads offers, each as far as the given number of its tokens."""

    @property
    def num_tokens(self) -> int:
        """The tokens of all of them."""

class Fit:
    """What the confidences of a source are worth: a logistic fit with terms for position, match and phase.

    Recursive Newton steps on the log loss, with forgetting, drawn to a prior: the less a source has shown of
    a term, the more its chances are those of its mean.
    """

    @property
    def weights(self) -> list[float]:
        """The price of each term."""

    @property
    def precision(self) -> list[list[float]]:
        """How sure the weights are, as a matrix."""

    @property
    def brier(self) -> float:
        """The mean squared error of its chances of late."""

    @property
    def num_observed(self) -> float:
        """The tokens that it remembers."""

    @property
    def trust(self) -> float:
        """How far its chances are believed, from 0 to 1: not at all before anything was verified."""

    def restore(
        self,
        *,
        weights: Sequence[float],
        precision: Sequence[Sequence[float]],
        brier: float,
        num_observed: float,
        decay: float,
    ) -> None:
        """Takes up what was learnt, at a part of its weight."""

class Calibration:
    """Turns confidences into chances that agree with what is accepted."""

    def __init__(self) -> None: ...
    def of(self, source: str) -> Fit:
        """Returns the fit of a source."""

    def chances(self, drafts: Drafts) -> list[list[float]]:
        """Returns the chance of each token of each draft if those before it are right; for tests."""

    def note(self, outcomes: Sequence[tuple[Record, _Offer, int, int]], *, at_once: bool = False) -> None:
        """Takes in the drafts verified in a step, each with how many tokens were verified and accepted.

        Of known sources it looks at some of many, in turn. It learns `at_once`, for a new source, or when it
        is worth the work.
        """

class SourceMean:
    """What is known of a source over all sequences."""

    @property
    def mean_yield(self) -> float:
        """Tokens won per question, the price of verifying taken off."""

    @property
    def compute_seconds(self) -> float:
        """What a draft takes to make."""

    @property
    def num_settled(self) -> int:
        """Questions of which it is known what they won."""

class Asking:
    """Knows whom to ask: what each source wins, for each sequence and over all, against a question's price.

    Steps are numbered, and an interval of n asks in the steps that n divides: so the questions that are asked
    seldom share their messages, and which step asks is given by what happened before, not by chance.

    Questions that are not known to pay are paid for out of an account that a small part of all time flows
    into: however many sequences come and go, trying sources costs no more than that. A full account pays for
    a question at any price, and what it took beyond that is owed: so a source that was slow is asked again.
    """

    def __init__(self, *, shares_cores: bool) -> None: ...
    def due(
        self, records: Sequence[Record], available: Iterable[str], step_number: int
    ) -> list[tuple[str, ...]]:
        """Returns for each sequence the sources to ask in the next step."""

    def ask(self, questions: Sequence[tuple[Record, Sequence[str]]]) -> int:
        """Notes questions and returns how many; one before, if nothing came of it, won nothing."""

    def note_offered(self, drafts: Drafts) -> None:
        """Notes that sources have answered: their questions have come to something."""

    def note_allocated(self, drafts: Drafts, counts: Sequence[int], calibration: Calibration) -> None:
        """Notes how many tokens of each draft are to be verified: questions for what is not won nothing.

        While a source is not trusted that is no judgement on it, but it is asked more seldom all the same.
        """

    def note_outcomes(
        self, outcomes: Sequence[tuple[Record, _Offer, int, int]], price_per_draft_token: float
    ) -> None:
        """Notes how many tokens of drafts were verified, at this price in tokens, and accepted."""

    def note_phase(self, record: Record, phase: str) -> None:
        """Notes the phase of a sequence; in a new one all sources are asked again."""

    def expected_yield(self, records: Sequence[Record]) -> float:
        """Returns the tokens that the answers for these sequences should win, less their price."""

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Returns whether a source should win more than drafts of others that are there.

        Their confidences are taken at their word, but for no more than was accepted of their source of late.
        """

    def earn(self, step_seconds: float) -> None:
        """Credits a step, and forgets what was promised to questions that it did not ask."""

    def note_answer(self, source: str, *, num_drafts: float, compute_seconds: float) -> None:
        """Follows what a draft of a source takes to make.

        A held up answer counts for little; if answers stay slow, that is learnt within some tens of them.
        """

    def note_overhead(self, seconds: float, num_questions: int) -> None:
        """Learns from the time between two steps, waiting left out, what questions add to it."""

    def set_token_seconds(self, token_seconds: float) -> None:
        """Reckons prices in tokens: what could have been generated in the time that a question takes."""

    def mean_of(self, source: str) -> SourceMean:
        """Returns what is known of a source now."""

    def restore(
        self, source: str, *, mean_yield: float, compute_seconds: float, num_settled: float, decay: float
    ) -> None:
        """Takes up what was learnt: the older, the nearer to what is hoped."""

class Ranked:
    """All positions of all drafts, likeliest to be reached and right first, but for those that never pay."""

    def __init__(self, drafts: Drafts, calibration: Calibration, max_num_positions: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def total(self) -> np.ndarray:
        """The expected accepted tokens of the first 0, 1, ... positions."""

    @property
    def believed(self) -> np.ndarray:
        """The same, as far as the sources are trusted."""

    def counts(self, num_positions: int) -> list[int]:
        """Returns how many tokens of each draft are among the first so many positions."""

class Probing:
    """Pays for trying what is not known to pay, so that all of it costs no more than it may.

    The predicted loss is laid down before the step, and what it really lost is paid after it; it may have
    won.
    """

    def __init__(self) -> None: ...
    def earn(self, seconds: float) -> None:
        """Credits a step."""

    def settle(self, seconds: float, num_output_tokens: float) -> None:
        """Hears what a step took and brought; if it was a probe its loss is known now."""

    @property
    def num_probes(self) -> int:
        """How often something was tried."""

def decide(
    *,
    num_base_tokens: float,
    total: np.ndarray,
    believed: np.ndarray,
    seconds: np.ndarray,
    doubt: np.ndarray,
    probing: Probing,
) -> int:
    """Returns how many positions to verify: what pays most beyond doubt, or is worth trying out.

    The arrays say of 0, 1, ... positions what they add to the tokens that the step yields anyway, and that as
    far as the sources are trusted; the step's seconds; and the relative standard error of those. The bad case
    is one standard error of the times of the step with drafts and of that without.
    """

def best_offers(
    choices: Sequence[tuple[Record, Sequence[_Offer]]],
    calibration: Calibration,
    asking: Asking,
    step_number: int,
) -> list[int]:
    """Returns for each sequence the index of the offer with most expected accepted tokens, as far as trusted.

    The questions of the sources that are worth less were asked in vain, and are counted so.
    """
