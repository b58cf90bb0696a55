"""Promise 1 beside a real drafter with every source: suffix memory, draft model and draft head."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.drafter.config import Config
from services.drafter.memory import SuffixMemory
from services.drafter.service import DrafterServicer
from services.drafter.sources import load_sources
from tests.integration.gateway_peers import MODEL
from tests.questions import accepted, ask_each_alone, ask_together, essence
from tests.speculating import Speculating, serving_drafter, speculating

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[Speculating]:
    config = Config(
        sources=("suffix", "model", "head"),
        model_dir=MODEL / "draft-model",
        head_dir=MODEL / "draft-head",
        target_dir=MODEL,
    )
    drafter = DrafterServicer(load_sources(config, SuffixMemory(config.memory_bytes)))
    async with serving_drafter(drafter) as port, speculating(port, head_dir=config.head_dir) as running:
        yield running


async def test_every_source_is_accepted_from_and_changes_no_answer(stack: Speculating) -> None:
    alone = await ask_each_alone(stack.client)
    await stack.until_drafter_is(connected=True)
    rounds = [await ask_together(stack.client) for _ in range(2)]
    for answers in rounds:
        assert [essence(answer) for answer in answers] == [essence(answer) for answer in alone]
    sources = accepted([answer for answers in rounds for answer in answers])
    assert {"suffix", "model", "head"} <= sources.keys()
    stack.scheduler.schedule.check()
