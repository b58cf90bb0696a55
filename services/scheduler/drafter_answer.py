"""What a drafter says, read with distrust: what cannot be used is counted and dropped."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from outrider.v1 import drafter_pb2 as pb
from services.scheduler.sequence import Draft

SOURCES = {
    pb.DRAFT_SOURCE_SUFFIX: "suffix",
    pb.DRAFT_SOURCE_MODEL: "model",
    pb.DRAFT_SOURCE_HEAD: "head",
}

# Of one message no more are looked at, so that one that floods costs a step less than 10 ms. A batch of 256
# sequences has so many drafts of one source for four outcomes each.
MAX_NUM_DRAFTS = 1024
# Those that nobody here knows included.
MAX_NUM_SOURCES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a draft must keep to."""

    max_num_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """What a source took to make drafts, empty ones among them."""

    source: str
    compute_seconds: float
    num_drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One message of a drafter; the drafts with their sequence and the hash of what they follow."""

    request_id: int
    drafts: list[tuple[int, int, Draft]]
    times: list[SourceTime]
    sources: frozenset[str]
    is_complete: bool
    num_unusable_drafts: int

    @classmethod
    def from_proto(cls, message: pb.ProposeResponse, bounds: Bounds) -> Self:
        """Reads a message."""
        drafts = [
            (item.sequence_id, item.base_hash, draft)
            for item in message.drafts[:MAX_NUM_DRAFTS]
            if (draft := _draft(item, bounds)) is not None
        ]
        return cls(
            request_id=message.request_id,
            drafts=drafts,
            times=[
                SourceTime(
                    source=SOURCES[item.source],
                    compute_seconds=item.compute_us * 1e-6,
                    num_drafts=item.num_drafts,
                )
                for item in message.times[:MAX_NUM_SOURCES]
                if item.source in SOURCES and item.num_drafts
            ],
            sources=frozenset(SOURCES[s] for s in message.sources[:MAX_NUM_SOURCES] if s in SOURCES),
            is_complete=message.complete,
            num_unusable_drafts=len(message.drafts) - len(drafts),
        )


def _draft(message: pb.Draft, bounds: Bounds) -> Draft | None:
    """Returns the draft; None if a token or confidence is none, or there are too many or too few of them."""
    if message.source not in SOURCES or not 0 < len(message.token_ids) <= bounds.max_num_tokens:
        return None
    if len(message.confidences) != len(message.token_ids) or not _are_chances(message.confidences):
        return None
    if max(message.token_ids) >= bounds.vocab_size:
        return None
    return Draft(
        base_length=message.base_length,
        token_ids=tuple(message.token_ids),
        confidences=tuple(message.confidences),
        source=SOURCES[message.source],
        match_length=message.match_length,
    )


def _are_chances(values: Iterable[float]) -> bool:
    return all(0.0 <= value <= 1.0 for value in values)
