"""Which of several drafts for one sequence is verified."""

from collections.abc import Sequence

import numpy as np

from services.scheduler.controller.asking import Asking
from services.scheduler.controller.calibration import Calibration
from services.scheduler.controller.drafts_table import DraftsTable, lay_out
from services.scheduler.controller.facts import Offer
from services.scheduler.controller.record import Record

# In every so many steps the source that was verified least is preferred; sooner while it has shown less than
# so many tokens. Odd numbers, so that the turn does not always fall on the steps in which sources are asked
# that are asked seldom.
_CHANGE_FROM_KNOWN, _CHANGE_TO_NEW = 251, 37
_NUM_KNOWN = 256
# Of sources that nothing is known of the more confident one is taken.
_LEAST_TRUST = 0.01


def best_offers(
    choices: Sequence[tuple[Record, Sequence[Offer]]],
    calibration: Calibration,
    asking: Asking,
    step_number: int,
) -> list[int]:
    """Returns for each sequence the index of the offer with most expected accepted tokens, as far as trusted.

    The questions of the sources that are worth less were asked in vain, and are counted so.
    """
    if all(len(offers) == 1 for _, offers in choices):
        return [0] * len(choices)
    offers = [offer for _, several in choices for offer in several]
    known = [asking.offered(record, offer.source) for record, several in choices for offer in several]
    table = lay_out([one.recent for one in known], offers, [len(offer.confidences) for offer in offers])
    num_observed = calibration.num_observed[table.source]
    is_turn = step_number % (_CHANGE_FROM_KNOWN if num_observed.min() >= _NUM_KNOWN else _CHANGE_TO_NEW) == 0
    worth = -num_observed if is_turn else _worth(table, calibration)
    result, end = [], 0
    for _, several in choices:
        begin, end = end, end + len(several)
        best = begin + int(np.argmax(worth[begin:end]))
        result.append(best - begin)
        for place in range(begin, end):
            if place != best and not is_turn:
                asking.settle(known[place], offers[place].source, 0.0)
    return result


def _worth(table: DraftsTable, calibration: Calibration) -> np.ndarray:
    expected = np.cumprod(calibration.chances(table), axis=1).sum(axis=1)
    return expected * (calibration.trust[table.source] + _LEAST_TRUST)
