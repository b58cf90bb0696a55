"""A drafter that knows the right tokens and does with them what it likes: a scheduler must survive it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc

from outrider import token_hash
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc

SUFFIX, MODEL, HEAD = pb.DRAFT_SOURCE_SUFFIX, pb.DRAFT_SOURCE_MODEL, pb.DRAFT_SOURCE_HEAD
NUM_GUESSES = 8


@dataclass(slots=True, kw_only=True)
class Known:
    """A sequence as its scheduler told it, and the tokens that it will have in the end."""

    token_ids: list[int]
    truth: list[int]

    def right_draft(self, base: Sequence[int], num_tokens: int) -> list[int]:
        """Returns what follows `base`; behind the sequence's end, tokens that never come."""
        return [*self.truth, *[7] * num_tokens][len(base) : len(base) + num_tokens]

    def outcome_of(self, draft: Sequence[int]) -> list[int]:
        """Returns the tokens that there will be when this draft has been verified."""
        rest = self.truth[len(self.token_ids) :]
        num_accepted = next(
            (n for n, pair in enumerate(zip(draft, rest, strict=False)) if pair[0] != pair[1]), len(draft)
        )
        return self.truth[: len(self.token_ids) + num_accepted + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One draft that is asked for, by the right tokens before it; and the right answer."""

    known: Known
    base: list[int]
    draft: pb.Draft
    vocab_size: int


Trick = Callable[[random.Random, Asked], Iterable[pb.Draft]]
"""What becomes of a right draft."""

Manner = Callable[["HostileDrafter", pb.ProposeResponse], AsyncIterator[pb.ProposeResponse]]
"""How an answer is delivered."""


async def plainly(
    drafter: "HostileDrafter", response: pb.ProposeResponse
) -> AsyncIterator[pb.ProposeResponse]:
    """Answers at once, and once."""
    yield response


def rightly(rng: random.Random, asked: Asked) -> Iterable[pb.Draft]:
    """Guesses right."""
    yield asked.draft


@dataclass(kw_only=True)
class HostileDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Speaks the drafter's protocol; `trick` and `manner` may change while it runs."""

    vocab_size: int
    sources: tuple[pb.DraftSource, ...] = (SUFFIX,)
    trick: Trick = rightly
    manner: Manner = plainly
    # The output of each sequence, by its seed.
    truths: dict[int, Sequence[int]] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    num_streams: int = 0
    num_answers: int = 0
    # What schedulers did wrong.
    complaints: list[str] = field(default_factory=list)
    _requests: asyncio.Queue[pb.ProposeRequest | None] = field(default_factory=asyncio.Queue)

    async def Propose(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ProposeResponse]:
        """Answers one scheduler."""
        self.num_streams += 1
        self._requests = requests = asyncio.Queue[pb.ProposeRequest | None]()
        known: dict[int, Known] = {}
        reading = asyncio.create_task(_read(request_iterator, requests))
        try:
            yield pb.ProposeResponse(sources=self.sources)
            while (request := await requests.get()) is not None:
                for answer in self._answers(request, known):
                    self.num_answers += 1
                    async for response in self.manner(self, answer):
                        yield response
            raise RuntimeError("the drafter hangs up")
        finally:
            reading.cancel()

    def hang_up(self) -> None:
        """Breaks the latest stream."""
        self._requests.put_nowait(None)

    def _answers(self, request: pb.ProposeRequest, known: dict[int, Known]) -> list[pb.ProposeResponse]:
        try:
            self._learn(request, known)
            answers = [self._answer(request, known)] if request.wanted else []
            return [*answers, self._ahead(request, known)] if request.verifying else answers
        except (AssertionError, LookupError) as fault:
            self.complaints.append(f"{fault!r} at {request}")
            raise

    def _learn(self, request: pb.ProposeRequest, known: dict[int, Known]) -> None:
        for opened in request.opened:
            prompt = list(opened.token_ids[: opened.num_prompt_tokens])
            truth = [*prompt, *self.truths.get(opened.params.seed, ())]
            known[opened.sequence_id] = Known(token_ids=list(opened.token_ids), truth=truth)
        for committed in request.committed:
            token_ids = known[committed.sequence_id].token_ids
            assert committed.offset == len(token_ids)
            token_ids += committed.token_ids
        for closed in request.closed:
            del known[closed.sequence_id]

    def _answer(self, request: pb.ProposeRequest, known: dict[int, Known]) -> pb.ProposeResponse:
        response = pb.ProposeResponse(request_id=request.request_id, complete=True)
        for wanted in request.wanted:
            sequence = known[wanted.sequence_id]
            assert wanted.base_length == len(sequence.token_ids)
            for source in wanted.sources or self.sources:
                response.drafts.extend(
                    self._drafts(
                        wanted.sequence_id, sequence, sequence.token_ids, source, wanted.max_num_tokens
                    )
                )
        return response

    def _ahead(self, request: pb.ProposeRequest, known: dict[int, Known]) -> pb.ProposeResponse:
        """Drafts for the outcome that there will be, and for one that there will not."""
        response = pb.ProposeResponse()
        for verifying in request.verifying:
            sequence = known[verifying.sequence_id]
            assert verifying.base_length == len(sequence.token_ids)
            outcome = sequence.outcome_of(verifying.token_ids)
            for source in verifying.sources or self.sources:
                for assumed in (outcome, [*outcome[:-1], 7]):
                    response.drafts.extend(
                        self._drafts(
                            verifying.sequence_id, sequence, assumed, source, verifying.max_num_tokens
                        )
                    )
        return response

    def _drafts(
        self, sequence_id: int, known: Known, base: list[int], source: pb.DraftSource, max_num_tokens: int
    ) -> Iterable[pb.Draft]:
        token_ids = known.right_draft(base, min(max_num_tokens, NUM_GUESSES))
        draft = pb.Draft(
            sequence_id=sequence_id,
            base_length=len(base),
            base_hash=token_hash.extend(token_hash.EMPTY, base),
            token_ids=token_ids,
            confidences=[0.9] * len(token_ids),
            source=source,
            match_length=9,
        )
        return self.trick(self.rng, Asked(known=known, base=base, draft=draft, vocab_size=self.vocab_size))


async def _read(requests: AsyncIterator[pb.ProposeRequest], queue: asyncio.Queue) -> None:
    async for request in requests:
        queue.put_nowait(request)
