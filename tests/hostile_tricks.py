"""What a hostile drafter does with right drafts, and how it delivers them."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterable

from outrider import token_hash
from outrider.v1 import drafter_pb2 as pb
from tests.hostile_drafter import Asked, HostileDrafter, Manner, Trick, plainly, rightly

LARGEST_ID = 2**32 - 1


def _copy(draft: pb.Draft, **changes: object) -> pb.Draft:
    copy = pb.Draft()
    copy.CopyFrom(draft)
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(copy, name)[:]
            getattr(copy, name).extend(value)
        else:
            setattr(copy, name, value)
    return copy


def _on_base(asked: Asked, base: list[int]) -> pb.Draft:
    """Returns a right draft for another base."""
    token_ids = asked.known.right_draft(base, len(asked.draft.token_ids))
    base_hash = token_hash.extend(token_hash.EMPTY, base)
    return _copy(asked.draft, base_length=len(base), base_hash=base_hash, token_ids=token_ids)


def _wrong(asked: Asked, token_id: int) -> int:
    return (token_id + 1) % asked.vocab_size


def one_right_token(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right, but no further than the next token: what knows more may go before."""
    draft = asked.draft
    yield _copy(draft, token_ids=draft.token_ids[:1], confidences=draft.confidences[:1])


def wrong_at_one_place(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Spoils one guess."""
    token_ids = list(asked.draft.token_ids)
    place = rng.randrange(len(token_ids))
    token_ids[place] = _wrong(asked, token_ids[place])
    yield _copy(asked.draft, token_ids=token_ids)


def wrong_everywhere(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Spoils every guess, and is certain of each."""
    token_ids = [_wrong(asked, token_id) for token_id in asked.draft.token_ids]
    yield _copy(asked.draft, token_ids=token_ids, confidences=[1.0] * len(token_ids))


def one_token_over_and_over(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Repeats the right token, which is what penalties are there for."""
    yield _copy(asked.draft, token_ids=[asked.draft.token_ids[0]] * len(asked.draft.token_ids))


def longer_than_allowed(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right, beyond what was asked for."""
    token_ids = asked.known.right_draft(asked.base, len(asked.draft.token_ids) + rng.choice((1, 5, 2000)))
    yield _copy(asked.draft, token_ids=token_ids, confidences=[0.9] * len(token_ids))


def on_a_stale_base(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right from a few tokens before."""
    yield _on_base(asked, asked.base[: max(0, len(asked.base) - rng.randint(1, 4))])


def on_a_stale_base_and_wrong(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Begins wrong a few tokens before."""
    draft = _on_base(asked, asked.base[: max(0, len(asked.base) - rng.randint(1, 4))])
    draft.token_ids[0] = _wrong(asked, draft.token_ids[0])
    yield draft


def on_a_base_to_come(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right, for later."""
    yield _on_base(asked, asked.known.truth[: len(asked.base) + rng.randint(1, 4)])


def with_a_wrong_hash(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Names another base of the same length, and so guesses wrong."""
    (draft,) = wrong_everywhere(rng, asked)
    yield _copy(draft, base_hash=draft.base_hash ^ (1 << rng.randrange(64)))


def with_a_wrong_length(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Names a length that its hash does not belong to."""
    lengths = (0, len(asked.base) - 1, len(asked.base) + 1, LARGEST_ID)
    yield _copy(asked.draft, base_length=rng.choice(lengths))


def outside_the_vocabulary(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Puts one id that does not exist among right ones."""
    token_ids = list(asked.draft.token_ids)
    token_ids[rng.randrange(len(token_ids))] = rng.choice((asked.vocab_size, 2**31, LARGEST_ID))
    yield _copy(asked.draft, token_ids=token_ids)


def with_mad_confidences(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right, with chances that are none, too many or too few."""
    count = len(asked.draft.token_ids) + rng.choice((-100, -1, 0, 1, 1000))
    chances = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 3e38, 1e-45)
    yield _copy(asked.draft, confidences=[rng.choice(chances) for _ in range(max(0, count))])


def of_a_sequence_that_is_not_there(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Draws names from nowhere."""
    yield _copy(asked.draft, sequence_id=rng.choice((0, asked.draft.sequence_id + 10**6, 2**64 - 1)))


def of_a_source_that_is_not_there(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Says that it comes from a source that it cannot come from."""
    draft = _copy(asked.draft, match_length=LARGEST_ID)
    draft.source = rng.choice((0, pb.DRAFT_SOURCE_GRAMMAR, 99))  # type: ignore[assignment]
    yield draft


def empty(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses nothing."""
    yield _copy(asked.draft, token_ids=[], confidences=[])


def contradicting_itself(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Sends several drafts for one place, at most one of them right."""
    drafts = [asked.draft, *wrong_everywhere(rng, asked), *wrong_at_one_place(rng, asked)]
    rng.shuffle(drafts)
    yield from drafts


def flooding(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Sends a hundred drafts where one was asked for."""
    for _ in range(100):
        yield _copy(asked.draft, base_length=rng.randrange(2000), base_hash=rng.getrandbits(64))
    yield asked.draft


TRICKS: tuple[Trick, ...] = (
    rightly, wrong_at_one_place, wrong_everywhere, one_token_over_and_over, longer_than_allowed,
    on_a_stale_base, on_a_stale_base_and_wrong, on_a_base_to_come, with_a_wrong_hash, with_a_wrong_length,
    outside_the_vocabulary, with_mad_confidences, of_a_sequence_that_is_not_there,
    of_a_source_that_is_not_there, empty, contradicting_itself, flooding,
)  # fmt: skip


def anyhow(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Plays another trick each time."""
    yield from rng.choice(TRICKS)(rng, asked)


async def late(drafter: HostileDrafter, response: pb.ProposeResponse) -> AsyncIterator[pb.ProposeResponse]:
    """Answers when the step is under way, or over."""
    await asyncio.sleep(drafter.rng.uniform(0, 0.06))
    yield response


async def twice(drafter: HostileDrafter, response: pb.ProposeResponse) -> AsyncIterator[pb.ProposeResponse]:
    """Says everything again."""
    yield response
    yield response


async def in_pieces(
    drafter: HostileDrafter, response: pb.ProposeResponse
) -> AsyncIterator[pb.ProposeResponse]:
    """Sends one draft to a message, as if each were an answer."""
    for draft in response.drafts:
        yield pb.ProposeResponse(drafts=[draft], request_id=response.request_id, complete=True)


async def to_another_question(
    drafter: HostileDrafter, response: pb.ProposeResponse
) -> AsyncIterator[pb.ProposeResponse]:
    """Answers what was not asked, with times that cannot be."""
    response.request_id = drafter.rng.choice((0, 1, response.request_id + 1, 2**64 - 1))
    response.times.add(source=pb.DRAFT_SOURCE_SUFFIX, compute_us=LARGEST_ID, num_drafts=1)
    response.times.add(source=pb.DRAFT_SOURCE_MODEL, compute_us=LARGEST_ID, num_drafts=0)
    response.times.add(source=pb.DRAFT_SOURCE_UNSPECIFIED, num_drafts=LARGEST_ID)
    response.sources.extend((pb.DRAFT_SOURCE_GRAMMAR, pb.DRAFT_SOURCE_UNSPECIFIED))
    yield response


async def silently(
    drafter: HostileDrafter, response: pb.ProposeResponse
) -> AsyncIterator[pb.ProposeResponse]:
    """Answers every third question."""
    if drafter.rng.random() < 1 / 3:
        yield response


async def dying(drafter: HostileDrafter, response: pb.ProposeResponse) -> AsyncIterator[pb.ProposeResponse]:
    """Answers a few times, then breaks the stream; the next one begins anew."""
    yield response
    if drafter.rng.random() < 0.2:
        raise RuntimeError("the drafter dies")


MANNERS: tuple[Manner, ...] = (late, twice, in_pieces, to_another_question, silently)


async def in_any_manner(
    drafter: HostileDrafter, response: pb.ProposeResponse
) -> AsyncIterator[pb.ProposeResponse]:
    """Has other manners each time."""
    async for sent in drafter.rng.choice((plainly, *MANNERS))(drafter, response):
        yield sent
