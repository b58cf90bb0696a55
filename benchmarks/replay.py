"""Replays drafts whose outcome is known, at any draft length, without a group.

What a model generates does not depend on the drafts, so one recording of the drafts at every position of a
text says what any choice of draft lengths would have accepted. What that would have taken comes from a cost
table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.scheduler.controller import Controller, Offer, Record, StepShape


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft at a position of a text, and how many of its tokens are right, up to the first wrong one."""

    offer: Offer
    num_right: int


class Text(Protocol):
    """An answer with the drafts at each of its positions."""

    num_prompt_tokens: int
    num_output_tokens: int

    def drafts(self, position: int) -> Sequence[Drafted]:
        """Returns the drafts, one per source at most, that follow so many output tokens."""
        ...


class Costs(Protocol):
    """What a step takes."""

    def step(self, shape: StepShape) -> tuple[float, Sequence[int]]:
        """Returns the seconds of a step, and its distinct experts per layer as far as they are known."""
        ...


@dataclass(slots=True, eq=False)
class Stream:
    """A text under way."""

    text: Text
    record: Record
    position: int = 0
    offered: Sequence[Drafted] = ()
    draft: Drafted | None = None

    @property
    def max_num_draft_tokens(self) -> int:
        """The longest useful draft: the step adds a token of its own."""
        return self.text.num_output_tokens - self.position - 1


class Policy(Protocol):
    """Decides what is asked for and verified."""

    def begin(self) -> Record:
        """Begins a sequence."""
        ...

    def ask(self, stream: Stream, available: frozenset[str]) -> Sequence[str]:
        """Returns the sources to ask."""
        ...

    def choose(self, shape: StepShape, streams: Sequence[Stream]) -> list[int]:
        """Sets each stream's draft and returns how many of its tokens to verify."""
        ...

    def note(
        self, streams: Sequence[Stream], num_verified: Sequence[int], num_accepted: Sequence[int]
    ) -> None:
        """Hears what became of the drafts."""
        ...

    def note_step(self, shape: StepShape, seconds: float, num_distinct_experts: Sequence[int]) -> None:
        """Hears what the step took."""
        ...


@dataclass(slots=True)
class Fixed:
    """Verifies so many tokens of every first draft, whatever it costs."""

    length: int

    def begin(self) -> Record:
        """Keeps no records."""
        return Record()

    def ask(self, stream: Stream, available: frozenset[str]) -> Sequence[str]:
        """Asks all, unless it drafts nothing."""
        return tuple(available) if self.length else ()

    def choose(self, shape: StepShape, streams: Sequence[Stream]) -> list[int]:
        """Takes the draft with most expected tokens by its own confidences."""
        for stream in streams:
            stream.draft = max(stream.offered, key=lambda drafted: _num_expected(drafted.offer))
        return [min(self.length, stream.max_num_draft_tokens, _length(stream)) for stream in streams]

    def note(
        self, streams: Sequence[Stream], num_verified: Sequence[int], num_accepted: Sequence[int]
    ) -> None:
        """Learns nothing."""

    def note_step(self, shape: StepShape, seconds: float, num_distinct_experts: Sequence[int]) -> None:
        """Learns nothing."""


@dataclass(slots=True)
class Controlled:
    """Does what the scheduler's controller says."""

    controller: Controller
    max_num_rows: int = 2048

    def begin(self) -> Record:
        """Begins a record."""
        return self.controller.new_record()

    def ask(self, stream: Stream, available: frozenset[str]) -> Sequence[str]:
        """Asks whom the controller asks."""
        (sources,) = self.controller.sources([stream.record], available)
        self.controller.note_questions([(stream.record, sources)])
        return sources

    def choose(self, shape: StepShape, streams: Sequence[Stream]) -> list[int]:
        """Lets the controller pick and cut."""
        offers = [[drafted.offer for drafted in stream.offered] for stream in streams]
        records = [stream.record for stream in streams]
        best = self.controller.best(list(zip(records, offers, strict=True)))
        drafts = []
        for stream, index in zip(streams, best, strict=True):
            stream.draft = stream.offered[index]
            drafts.append((stream.record, stream.draft.offer, stream.max_num_draft_tokens))
        return self.controller.allocate(shape, drafts, self.max_num_rows - shape.num_rows)

    def note(
        self, streams: Sequence[Stream], num_verified: Sequence[int], num_accepted: Sequence[int]
    ) -> None:
        """Tells the controller."""
        for stream, verified, accepted in zip(streams, num_verified, num_accepted, strict=True):
            if verified and stream.draft is not None:
                self.controller.note_draft(stream.record, stream.draft.offer, verified, accepted)

    def note_step(self, shape: StepShape, seconds: float, num_distinct_experts: Sequence[int]) -> None:
        """Tells the controller."""
        self.controller.note_step(shape, seconds, num_distinct_experts)


@dataclass(slots=True)
class Outcome:
    """What a replay came to."""

    num_tokens: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_questions: int = 0
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all streams."""
        return self.num_tokens / self.seconds

    @property
    def mean_length(self) -> float:
        """Draft tokens verified per sequence and step."""
        return self.num_draft_tokens / max(1, sum(self.lengths.values()))


def replay(
    texts: Iterable[Text],
    num_streams: int,
    policy: Policy,
    costs: Costs,
    *,
    num_tokens: int,
    question_seconds: float = 0.0,
    on_step: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Runs texts, so many at a time, until there are so many output tokens; prompts are computed already.

    There must be texts enough: the streams are never fewer, as at the end of a batch they would be.
    """
    waiting, outcome = iter(texts), Outcome()
    streams = _fill([], waiting, num_streams, policy)
    while outcome.num_tokens < num_tokens:
        assert len(streams) == num_streams, "too few texts"
        shape = _ask(streams, policy)
        asked = sum(bool(stream.offered) for stream in streams)
        drafting = [stream for stream in streams if stream.offered]
        counts = policy.choose(shape, drafting) if drafting else []
        accepted = [min(count, _num_right(stream)) for stream, count in zip(drafting, counts, strict=True)]
        policy.note(drafting, counts, accepted)
        shape = StepShape(
            num_rows=shape.num_rows + sum(counts),
            num_sequences=shape.num_sequences,
            num_context_tokens=shape.num_context_tokens,
        )
        seconds, experts = costs.step(shape)
        policy.note_step(shape, seconds, experts)
        _count(outcome, streams, drafting, counts, accepted)
        outcome.seconds += seconds + asked * question_seconds
        outcome.num_questions += asked
        on_step(outcome)
        streams = _fill(
            [stream for stream in streams if stream.position < stream.text.num_output_tokens],
            waiting,
            num_streams,
            policy,
        )
    return outcome


def _fill(streams: list[Stream], waiting: Iterator[Text], num_streams: int, policy: Policy) -> list[Stream]:
    while len(streams) < num_streams and (text := next(waiting, None)) is not None:
        streams.append(Stream(text, policy.begin()))
    return streams


def _ask(streams: Sequence[Stream], policy: Policy) -> StepShape:
    """Gives each stream the drafts of the sources that are asked; returns the step without drafts."""
    num_context_tokens = 0
    for stream in streams:
        num_context_tokens += stream.text.num_prompt_tokens + stream.position
        stream.offered, stream.draft = (), None
        if stream.max_num_draft_tokens > 0:
            drafts = stream.text.drafts(stream.position)
            sources = policy.ask(stream, frozenset(drafted.offer.source for drafted in drafts))
            stream.offered = [drafted for drafted in drafts if drafted.offer.source in sources]
    return StepShape(num_rows=len(streams), num_sequences=len(streams), num_context_tokens=num_context_tokens)


def _count(
    outcome: Outcome,
    streams: Sequence[Stream],
    drafting: Sequence[Stream],
    counts: Sequence[int],
    accepted: Sequence[int],
) -> None:
    for stream in streams:
        stream.position += 1
    for stream, num_accepted in zip(drafting, accepted, strict=True):
        stream.position += num_accepted
    for count in [*counts, *[0] * (len(streams) - len(drafting))]:
        outcome.lengths[count] = outcome.lengths.get(count, 0) + 1
    outcome.num_steps += 1
    outcome.num_tokens += len(streams) + sum(accepted)
    outcome.num_draft_tokens += sum(counts)
    outcome.num_accepted_tokens += sum(accepted)


def _num_expected(offer: Offer) -> float:
    total, survival = 0.0, 1.0
    for confidence in offer.confidences:
        survival *= confidence
        total += survival
    return total


def _length(stream: Stream) -> int:
    return len(stream.draft.offer.confidences) if stream.draft is not None else 0


def _num_right(stream: Stream) -> int:
    return stream.draft.num_right if stream.draft is not None else 0
