"""Promise 1 under everything that speculation can do: no drafter, however bad, changes an answer."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from outrider.client import Answer
from outrider.v1.drafter_pb2 import DraftSource
from services.local.settings import DEFAULT_MODEL
from tests import hostile_tricks as tricks
from tests.hostile_drafter import HEAD, MODEL, SUFFIX, HostileDrafter, Manner, Trick, plainly, rightly
from tests.questions import accepted, ask_each_alone, ask_together, essence, questions
from tests.speculating import Speculating, serving_drafter, speculating

pytestmark = pytest.mark.asyncio(loop_scope="module")
VOCAB_SIZE = 800


@dataclass(kw_only=True)
class Beset:
    """A stack, its hostile drafter, and the answers that there would be without."""

    stack: Speculating
    drafter: HostileDrafter
    undrafted: list[tuple]

    async def check(
        self,
        *,
        trick: Trick = rightly,
        manner: Manner = plainly,
        sources: Sequence[DraftSource] = (SUFFIX,),
    ) -> list[Answer]:
        """Asks all questions at once beside such a drafter; the answers are what they were without."""
        await self._have_drafter(trick, manner, tuple(sources))
        counters = self.stack.scheduler.counters
        num_answers, num_preemptions = self.drafter.num_answers, counters.num_preemptions
        answers = await ask_together(self.stack.client)
        assert [essence(answer) for answer in answers] == self.undrafted
        assert self.drafter.num_answers > num_answers
        assert not self.drafter.complaints
        # A draft that the group refuses would have everything computed again.
        assert counters.num_preemptions == num_preemptions
        self.stack.scheduler.schedule.check()
        return answers

    async def _have_drafter(self, trick: Trick, manner: Manner, sources: tuple[DraftSource, ...]) -> None:
        self.drafter.trick, self.drafter.manner = trick, manner
        if self.drafter.sources != sources:
            self.drafter.sources = sources
            await self.lose_drafter()
        await self.stack.until_drafter_is(connected=True)

    async def lose_drafter(self) -> None:
        """Breaks the drafter's stream; the scheduler soon opens another."""
        self.drafter.hang_up()
        await self.stack.until_drafter_is(connected=False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def beset() -> AsyncIterator[Beset]:
    drafter = HostileDrafter(vocab_size=VOCAB_SIZE)
    async with (
        serving_drafter(drafter) as port,
        speculating(port, head_dir=DEFAULT_MODEL / "draft-head") as stack,
    ):
        alone = await ask_each_alone(stack.client)
        assert not any(answer.stats.num_draft_tokens for answer in alone)
        for question, answer in zip(questions(), alone, strict=True):
            drafter.truths[question["seed"]] = answer.token_ids
        yield Beset(stack=stack, drafter=drafter, undrafted=[essence(answer) for answer in alone])


@pytest.mark.parametrize("trick", tricks.TRICKS, ids=lambda trick: trick.__name__)
async def test_no_draft_changes_an_answer(beset: Beset, trick: Trick) -> None:
    await beset.check(trick=trick)


@pytest.mark.parametrize("manner", tricks.MANNERS, ids=lambda manner: manner.__name__)
async def test_no_manner_of_answering_changes_an_answer(beset: Beset, manner: Manner) -> None:
    await beset.check(manner=manner)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ((MODEL,), {"model"}),
        ((HEAD,), {"head"}),
        ((SUFFIX, HEAD), {"suffix", "head"}),
        ((SUFFIX, MODEL, HEAD), {"suffix", "model", "head"}),
    ],
)
async def test_no_mix_of_sources_changes_an_answer(
    beset: Beset, sources: Sequence[DraftSource], names: set[str]
) -> None:
    answers = await beset.check(sources=sources)
    # What the grammar forces is drafted too.
    assert names <= accepted(answers).keys() <= names | {"grammar"}
    await beset.check(sources=sources, trick=tricks.anyhow, manner=tricks.in_any_manner)


async def test_grammar_and_suffix_memory_guess_in_turn(beset: Beset) -> None:
    answers = await beset.check(trick=tricks.one_right_token)
    (constrained,) = [answer for answer in answers if "apples" in answer.text or "pears" in answer.text]
    assert accepted([constrained]).keys() == {"grammar", "suffix"}


async def test_right_drafts_are_accepted_and_wrong_ones_are_not(beset: Beset) -> None:
    """Else nothing else here would test anything."""
    right = await beset.check()
    wrong = await beset.check(trick=tricks.wrong_everywhere)
    num_steps = [sum(answer.stats.num_steps for answer in answers) for answers in (right, wrong)]
    assert num_steps[0] < 0.7 * num_steps[1]
    assert accepted(wrong).total() == accepted(wrong)["grammar"]
    assert sum(answer.stats.num_draft_tokens for answer in wrong) > 100


async def test_a_drafter_that_dies_and_comes_back_changes_no_answer(beset: Beset) -> None:
    num_streams = beset.drafter.num_streams
    await beset.check(manner=tricks.dying, trick=tricks.anyhow)
    await beset.lose_drafter()
    answers = await beset.check()
    assert beset.drafter.num_streams > num_streams
    assert accepted(answers)["suffix"]
