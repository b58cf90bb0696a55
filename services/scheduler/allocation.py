"""Which draft of each sequence is verified in a step, and how much of it."""

from services.scheduler.batch import Batch, SequenceStep
from services.scheduler.controller import Controller, Offer
from services.scheduler.places import Places
from services.scheduler.sequence import Draft


def attach_drafts(batch: Batch, places: Places, controller: Controller, max_num_rows: int) -> None:
    """Attaches what the controller finds worth verifying where the step reaches the last known token.

    Drafts displace no known token and no running sequence, but they take free blocks, for which the prefix
    cache may give up its oldest: without those a full cache would cut every draft at the end of a block.
    """
    steps = [step for step in batch.steps if step.sequence.offers and _takes_drafts(step)]
    if not steps or max_num_rows <= 0:
        return
    offers = [[_offer(draft, step) for draft in step.sequence.offers.values()] for step in steps]
    best = controller.best([(step.sequence.record, of) for step, of in zip(steps, offers, strict=True)])
    chosen = [of[index] for of, index in zip(offers, best, strict=True)]
    drafts = [
        (step.sequence.record, offer, step.sequence.num_useful_draft_tokens)
        for step, offer in zip(steps, chosen, strict=True)
    ]
    lengths = controller.allocate(batch.shape, drafts, max_num_rows)
    for step, offer, length in zip(steps, chosen, lengths, strict=True):
        _attach(step, offer, length, places)


def _takes_drafts(step: SequenceStep) -> bool:
    return step.chooses and step.sequence.num_useful_draft_tokens > 0


def _offer(draft: Draft, step: SequenceStep) -> Offer:
    assert draft.base_length == step.sequence.num_tokens
    return Offer(
        source=draft.source,
        confidences=draft.confidences,
        match_length=draft.match_length,
        phase=step.sequence.phase,
    )


def _attach(step: SequenceStep, offer: Offer, length: int, places: Places) -> None:
    sequence = step.sequence
    places.grow(sequence, sequence.num_tokens + length, at_most=True)
    length = min(length, places.num_slots_behind(sequence))
    if length > 0:
        step.draft_token_ids, step.offer = sequence.offers[offer.source].token_ids[:length], offer
