"""The texts that speculation is measured on are what they are said to be."""

from itertools import islice

import pytest

from benchmarks.agent import Session, calculate, sessions
from benchmarks.edits import ESCAPE, Edit, encode, forced, recorded
from benchmarks.workloads import Place, problems
from outrider.model.sampling import GrammarCompiler
from outrider.params import Grammar
from services.local.settings import DEFAULT_MODEL
from training.tasks import Problem

VOCAB_SIZE = 800
NUM_EDITS = 4


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler((DEFAULT_MODEL / "tokenizer.json").read_text(), VOCAB_SIZE)


def first_problems(place: Place) -> list[Problem]:
    return list(islice(problems(place), 30))


def test_problems_are_held_out_from_training() -> None:
    assert all(problem.is_held_out for problem in first_problems(Place()))


def test_equal_places_ask_the_same_and_others_nothing_of_it() -> None:
    asked = {problem.question for problem in first_problems(Place(pair=1))}
    assert {problem.question for problem in first_problems(Place(pair=1))} == asked
    others = [Place(pair=1, is_second=True), Place(pair=2), Place(pair=1, stream=1), Place(cell="b", pair=1)]
    for place in others:
        # Small numbers come up again by chance.
        assert len({problem.question for problem in first_problems(place)} & asked) < 3


def test_both_runs_of_a_pair_ask_for_the_same_tasks_in_the_same_order() -> None:
    tasks = [problem.task for problem in first_problems(Place(pair=3, stream=2))]
    assert [p.task for p in first_problems(Place(pair=3, stream=2, is_second=True))] == tasks


def test_no_edit_comes_twice_in_the_conversations() -> None:
    played = sessions(6)
    edits = [turn for session in played for turn in session.turns if isinstance(turn, Edit)]
    assert len({(edit.path, edit.before, edit.after) for edit in edits}) == len(edits) > 0
    assert sessions(6) == played
    assert all(isinstance(session, Session) for session in played)


@pytest.mark.parametrize("edit", recorded()[:NUM_EDITS])
def test_a_forced_text_is_the_only_output_and_yet_nothing_of_it_can_be_drafted_by_the_grammar(
    edit: Edit, compiler: GrammarCompiler
) -> None:
    options = forced(edit.after)
    (escape,) = encode(ESCAPE)
    assert options.get("logit_bias") == {escape: -100.0}
    state = compiler.compile(Grammar(language="lark", text=options.get("lark", "")), [])
    for token_id in encode(edit.after):
        (forbidden,) = state.forbidden_along([], VOCAB_SIZE)
        assert {token for token in range(VOCAB_SIZE) if not forbidden[token]} == {token_id, escape}
        assert state.forced_token_ids() == []
        state.advance([token_id])
    assert state.is_complete


@pytest.mark.parametrize("edit", recorded())
def test_recorded_edits_change_something_and_hold_no_escape(edit: Edit) -> None:
    assert edit.before != edit.after
    assert ESCAPE not in edit.before + edit.after


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"expression": "27 * 87"}', "2349"),
        ('{"expression": "(2 + 3) * 4 - 30"}', "-10"),
        ('{"expression": "2 ** 9"}', "error"),
        ('{"expression": "__import__"}', "error"),
        ('{"sum": "1 + 1"}', "error"),
        ("no JSON", "error"),
        ("[]", "error"),
    ],
)
def test_the_calculator_computes_sums_and_nothing_else(arguments: str, said: str) -> None:
    assert calculate(arguments) == said
