"""Which draft of each sequence is verified in a step, and how much of it."""

from services.scheduler.batch import Batch, SequenceStep
from services.scheduler.controller import Controller, Offer
from services.scheduler.counters import Counters
from services.scheduler.places import Places
from services.scheduler.sequence import Draft, Sequence


def attach_drafts(
    batch: Batch, places: Places, controller: Controller, counters: Counters, max_num_rows: int
) -> None:
    """Attaches what the controller finds worth verifying where the step reaches the last known token.

    Drafts displace no known token and no running sequence, but they take free blocks, for which the prefix
    cache may give up its oldest: without those a full cache would cut every draft at the end of a block.
    """
    steps = [step for step in batch.steps if step.sequence.offers and step.chooses]
    limits = [step.sequence.num_useful_draft_tokens for step in steps]
    if max(limits, default=0) <= 0 or max_num_rows <= 0:
        return
    offers = [[_offer(draft, step.sequence) for draft in step.sequence.offers.values()] for step in steps]
    best = controller.best([(step.sequence.record, of) for step, of in zip(steps, offers, strict=True)])
    chosen = [of[index] for of, index in zip(offers, best, strict=True)]
    drafts = [
        (step.sequence.record, offer, max(0, most))
        for step, offer, most in zip(steps, chosen, limits, strict=True)
    ]
    lengths = controller.allocate(batch.shape, drafts, max_num_rows)
    for step, offer, length in zip(steps, chosen, lengths, strict=True):
        if length > 0:
            _attach(step, offer, length, places)
        else:
            counters.count_unverified(offer.source)


def _offer(draft: Draft, sequence: Sequence) -> Offer:
    assert draft.base_length == len(sequence.token_ids)
    return Offer(
        source=draft.source,
        confidences=draft.confidences,
        match_length=draft.match_length,
        phase=sequence.phase,
    )


def _attach(step: SequenceStep, offer: Offer, length: int, places: Places) -> None:
    sequence = step.sequence
    if length > places.num_slots_behind(sequence):
        places.grow(sequence, sequence.num_tokens + length, at_most=True)
        length = min(length, places.num_slots_behind(sequence))
    if length > 0:
        step.draft_token_ids, step.offer = sequence.offers[offer.source].token_ids[:length], offer
