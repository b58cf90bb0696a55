"""What a drafter says is read with distrust."""

import math
from typing import Any, cast

import pytest

from outrider.v1 import drafter_pb2 as pb
from services.scheduler.drafter_answer import MAX_NUM_DRAFTS, MAX_NUM_SOURCES, Answer, Bounds
from services.scheduler.sequence import Draft

BOUNDS = Bounds(max_num_tokens=4, vocab_size=10)


def message(**changes) -> pb.Draft:
    fields = {
        "sequence_id": 7, "base_length": 3, "base_hash": 11, "token_ids": [1, 2], "confidences": [0.5, 1.0],
        "source": pb.DRAFT_SOURCE_HEAD, "match_length": 5,
    }  # fmt: skip
    return pb.Draft(**(fields | changes))


def read(*drafts: pb.Draft, **fields) -> Answer:
    return Answer.from_proto(pb.ProposeResponse(drafts=drafts, **fields), BOUNDS)


def test_a_draft_comes_with_its_sequence_and_the_hash_of_what_it_follows() -> None:
    draft = Draft(base_length=3, token_ids=(1, 2), confidences=(0.5, 1.0), source="head", match_length=5)
    assert read(message()).drafts == [(7, 11, draft)]


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": []},
        {"token_ids": [1] * 5, "confidences": [0.5] * 5},
        {"token_ids": [1, 10]},
        {"confidences": []},
        {"confidences": [0.5]},
        {"confidences": [0.5, 0.5, 0.5]},
        {"confidences": [0.5, math.nan]},
        {"confidences": [math.inf, 0.5]},
        {"confidences": [-0.1, 0.5]},
        {"confidences": [1.5, 0.5]},
        {"source": pb.DRAFT_SOURCE_UNSPECIFIED},
        {"source": pb.DRAFT_SOURCE_GRAMMAR},
        {"source": 99},
    ],
)
def test_a_draft_that_makes_no_sense_is_dropped_alone_and_counted(changes) -> None:
    answer = read(message(**changes), message())
    assert [sequence_id for sequence_id, _, _ in answer.drafts] == [7]
    assert answer.num_unusable_drafts == 1


def test_of_a_flood_of_drafts_only_so_many_are_looked_at() -> None:
    answer = read(*[message()] * 5000)
    assert len(answer.drafts) == MAX_NUM_DRAFTS
    assert answer.num_unusable_drafts == 5000 - MAX_NUM_DRAFTS


def test_of_a_flood_of_times_and_sources_only_so_many_are_looked_at() -> None:
    time = pb.DraftSourceTime(source=pb.DRAFT_SOURCE_SUFFIX, compute_us=1, num_drafts=1)
    sources = [*[pb.DRAFT_SOURCE_SUFFIX] * 5000, pb.DRAFT_SOURCE_MODEL]
    answer = read(times=[time] * 5000, sources=sources)
    assert len(answer.times) == MAX_NUM_SOURCES
    assert answer.sources == {"suffix"}


def test_unknown_sources_and_times_of_nothing_are_passed_over() -> None:
    times = [
        pb.DraftSourceTime(source=pb.DRAFT_SOURCE_SUFFIX, compute_us=500, num_drafts=2),
        pb.DraftSourceTime(source=pb.DRAFT_SOURCE_MODEL, compute_us=500, num_drafts=0),
        pb.DraftSourceTime(source=cast(Any, 77), compute_us=500, num_drafts=1),
    ]
    answer = read(times=times, sources=[pb.DRAFT_SOURCE_SUFFIX, 77, pb.DRAFT_SOURCE_GRAMMAR], complete=True)
    assert [(item.source, item.compute_seconds, item.num_drafts) for item in answer.times] == [
        ("suffix", 0.0005, 2)
    ]
    assert answer.sources == {"suffix"}
    assert answer.is_complete
