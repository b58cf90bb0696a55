"""When the draft head is asked, and which steps hidden vectors are wanted of."""

from services.scheduler.batch import SequenceStep
from services.scheduler.head_turns import MIN_NUM_SEEN, NUM_STEPS_WITH_FEATURES, HeadTurns
from tests.unit.scheduler.scenario import SequenceMaker


class Text:
    """A sequence that grows by a token per step, behind a prompt that was computed before."""

    def __init__(self, turns: HeadTurns) -> None:
        self.turns = turns
        self.sequence = SequenceMaker()(list(range(100)), max_num_tokens=4000)

    def step(self, *named: str, is_shown: bool = True) -> tuple[tuple[str, ...], bool]:
        """Runs a step; returns who is asked before it and whether hidden vectors of it are wanted."""
        num_tokens = self.sequence.num_tokens
        sources = self.turns.sources(self.sequence, named)
        step = SequenceStep(
            sequence=self.sequence, is_start=False, num_computed_tokens=num_tokens - 1, num_new_tokens=1
        )
        wanted = self.turns.wants_features(step)
        if wanted and is_shown:
            self.turns.note_shown(self.sequence, num_tokens - 1, 1)
        self.sequence.commit([7])
        return sources, wanted


def test_a_head_named_once_is_asked_when_it_has_seen_the_end_of_the_text() -> None:
    text = Text(HeadTurns())
    steps = [text.step("head"), *[text.step() for _ in range(40)]]
    assert [number for number, (sources, _) in enumerate(steps) if sources] == [MIN_NUM_SEEN]
    num_with_features = MIN_NUM_SEEN + NUM_STEPS_WITH_FEATURES
    assert [wanted for _, wanted in steps] == [number < num_with_features for number in range(41)]


def test_a_head_named_in_every_step_is_asked_in_every_step_from_then_on() -> None:
    text = Text(HeadTurns())
    steps = [text.step("head") for _ in range(20)]
    assert steps == [((), True)] * MIN_NUM_SEEN + [(("head",), True)] * (20 - MIN_NUM_SEEN)


def test_other_sources_do_not_wait_for_the_head() -> None:
    text = Text(HeadTurns())
    assert [text.step("suffix", "head")[0] for _ in range(MIN_NUM_SEEN)] == [("suffix",)] * MIN_NUM_SEEN
    assert text.step("suffix")[0] == ("suffix", "head")


def test_nothing_flows_where_the_head_is_not_named() -> None:
    turns = HeadTurns()
    text = Text(turns)
    assert [text.step("suffix") for _ in range(5)] == [(("suffix",), False)] * 5
    assert not len(turns)


def test_a_head_whose_hidden_vectors_do_not_come_is_not_asked() -> None:
    text = Text(HeadTurns())
    steps = [text.step("head", is_shown=False)]
    steps += [text.step(is_shown=False) for _ in range(NUM_STEPS_WITH_FEATURES)]
    assert steps == [((), True)] * NUM_STEPS_WITH_FEATURES + [((), False)]
    assert text.step() == ((), False)


def test_a_gap_in_what_is_shown_puts_the_question_off() -> None:
    text = Text(HeadTurns())
    text.step("head")
    text.step(is_shown=False)
    assert [text.step("head")[0] for _ in range(MIN_NUM_SEEN)] == [()] * MIN_NUM_SEEN
    assert text.step("head")[0] == ("head",)


def test_a_head_that_has_seen_a_whole_short_prompt_is_asked_at_once() -> None:
    turns = HeadTurns()
    sequence = SequenceMaker()([1, 2])
    assert turns.sources(sequence, ("head",)) == ()
    turns.note_shown(sequence, 0, 2)
    sequence.commit([3])
    assert turns.sources(sequence, ()) == ("head",)


def test_what_a_lost_drafter_was_shown_another_has_not_seen() -> None:
    turns = HeadTurns()
    text = Text(turns)
    for _ in range(MIN_NUM_SEEN):
        text.step("head")
    turns.clear()
    assert text.step("head") == ((), True)
