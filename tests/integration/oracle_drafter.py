"""A drafter that guesses right, or as badly as it is told to: a peer that the scheduler must survive."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import grpc

from outrider import token_hash
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from outrider.v1.drafter_pb2 import DraftSource
from tests.integration.scheduler_stack import VOCAB_SIZE
from tests.unit.scheduler.reference_group import alone

SUFFIX, MODEL, HEAD = pb.DRAFT_SOURCE_SUFFIX, pb.DRAFT_SOURCE_MODEL, pb.DRAFT_SOURCE_HEAD

Spoil = Callable[[pb.Draft], None]
Deliver = Callable[[list[pb.ProposeResponse]], list[pb.ProposeResponse]]


@dataclass
class Told:
    """A sequence as the scheduler told it."""

    token_ids: list[int]
    seed: int
    num_features: int = 0


@dataclass(kw_only=True)
class OracleDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Knows what follows. `spoil` is done to each draft, `deliver` to the messages of each answer."""

    spoil: Spoil = lambda draft: None
    deliver: Deliver = lambda responses: responses
    sources: Sequence[DraftSource] = (SUFFIX,)
    num_late: int = 0  # tokens by which its drafts are behind
    drafts_ahead: bool = False
    not_ahead: Sequence[DraftSource] = ()
    num_streams: int = 0
    told: dict[int, Told] = field(default_factory=dict)
    closed: list[pb.DraftSequenceClosed] = field(default_factory=list)
    requests: list[pb.ProposeRequest] = field(default_factory=list)
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def Propose(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ProposeResponse]:
        """Answers one scheduler."""
        self.num_streams += 1
        self.told.clear()
        yield pb.ProposeResponse(sources=self.sources)
        async for request in request_iterator:
            if self.hang_up.is_set():
                self.hang_up.clear()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the drafter goes")
            self._follow(request)
            for response in self.deliver(self._answer(request)):
                yield response
            if ahead := self._answer_ahead(request):
                yield ahead

    def _follow(self, request: pb.ProposeRequest) -> None:
        self.requests.append(request)
        for opened in request.opened:
            assert opened.sequence_id not in self.told
            self.told[opened.sequence_id] = Told(list(opened.token_ids), opened.params.seed)
        for committed in request.committed:
            tokens = self.told[committed.sequence_id].token_ids
            assert committed.offset == len(tokens)
            tokens.extend(committed.token_ids)
        for features in request.features:
            told = self.told[features.sequence_id]
            for index in range(len(features.rows) // 4):
                position, token_id = struct.unpack_from("<HH", features.rows, 4 * index)
                assert position == features.offset + index
                assert token_id == told.token_ids[position]
                told.num_features += 1
        self.closed.extend(request.closed)

    def _answer(self, request: pb.ProposeRequest) -> list[pb.ProposeResponse]:
        responses = []
        for source in self.sources if request.wanted else ():
            drafts = [
                self._draft(wanted.sequence_id, [], wanted.max_num_tokens, source)
                for wanted in request.wanted
                if source in wanted.sources
            ]
            time = pb.DraftSourceTime(source=source, compute_us=100, num_drafts=len(drafts))
            responses.append(pb.ProposeResponse(drafts=drafts, times=[time], request_id=request.request_id))
        if responses:
            responses[-1].complete = True
        return responses

    def _answer_ahead(self, request: pb.ProposeRequest) -> pb.ProposeResponse | None:
        if not self.drafts_ahead or not request.verifying:
            return None
        assert request.ahead_us > 0
        drafts = []
        for verifying in request.verifying:
            told = self.told[verifying.sequence_id]
            assert verifying.base_length == len(told.token_ids)
            outcome = self._follow_up(told.token_ids, told.seed, len(verifying.token_ids) + 1)
            num_accepted = sum(a == b for a, b in zip(outcome, verifying.token_ids, strict=False))
            assumed = outcome[: num_accepted + 1]
            for source in set(verifying.sources) - set(self.not_ahead):
                wrong = [*assumed[:-1], (assumed[-1] + 1) % VOCAB_SIZE]
                for tokens in (wrong, assumed):
                    drafts.append(
                        self._draft(verifying.sequence_id, tokens, verifying.max_num_tokens, source)
                    )
        return pb.ProposeResponse(drafts=drafts)

    def _follow_up(self, tokens: list[int], seed: int, count: int) -> list[int]:
        text = alone(tokens, seed, num_tokens=len(tokens) + count, stop=frozenset(), vocab_size=VOCAB_SIZE)
        return text[len(tokens) :]

    def _draft(
        self, sequence_id: int, assumed: list[int], max_num_tokens: int, source: DraftSource
    ) -> pb.Draft:
        told = self.told[sequence_id]
        tokens = [*told.token_ids, *assumed]
        base = tokens[: len(tokens) - self.num_late]
        guess = [*tokens, *self._follow_up(tokens, told.seed, max_num_tokens)][len(base) :][:max_num_tokens]
        draft = pb.Draft(
            sequence_id=sequence_id,
            base_length=len(base),
            base_hash=token_hash.extend(token_hash.EMPTY, base),
            token_ids=guess,
            confidences=[0.9] * len(guess),
            source=source,
            match_length=3,
        )
        self.spoil(draft)
        return draft
