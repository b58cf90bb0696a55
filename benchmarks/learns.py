"""Measures what is learnt from an agent's work: the same conversations played three times.

    python -m benchmarks.learns [--num-sessions 3] [--num-rounds 3] [--drafter suffix,model,head]

A round begins with a stack that has learnt nothing and conversations of its own: they are played a first and
a second time with drafts, then without (requests without drafts teach the drafter nothing). Then all services
are stopped and started again with what they kept on disk, and the conversations are played a third time.

Rates are of decoding alone, from the first event of an answer to its last, so that a prefix cache that is
cold at first, and again after the restart, does not show in them. Ratios are taken conversation by
conversation, within a round; the report gives their medians.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.agent import Conversation, Session, sessions
from benchmarks.answers import Meter, accepted_per_step, asker, decoding_rate
from benchmarks.intervals import interval
from benchmarks.progress import Progress
from benchmarks.stacks import stack
from outrider import AsyncClient
from services.local.settings import DRAFT_SOURCES

PASSES = ("first", "second", "without drafts", "third, restarted")
NUM_BEFORE_RESTART = 3


async def play(client: AsyncClient, session: Session, *, drafts: bool) -> dict[str, Any]:
    """Plays one conversation and returns how it went."""
    began = time.perf_counter()
    answers = await Conversation(asker(client, Meter(), speculation=drafts)).play(session)
    return {
        "num_tokens": sum(answer.usage.completion_tokens for answer in answers),
        "tokens_per_second": decoding_rate(answers),
        "accepted_per_step": accepted_per_step(answers),
        "seconds": time.perf_counter() - began,
        "tokens": [answer.token_ids for answer in answers],
    }


async def measure_round(
    played: Sequence[Session], state: Path, sources: tuple[str, ...], progress: Progress
) -> list[list[dict[str, Any]]]:
    """Returns for every pass how each conversation went."""
    found: list[list[dict[str, Any]]] = []
    for passes in (PASSES[:NUM_BEFORE_RESTART], PASSES[NUM_BEFORE_RESTART:]):
        async with (
            stack(drafter=sources, state=state) as running,
            AsyncClient(running.grpc_address) as client,
        ):
            for name in passes:
                drafts = name != "without drafts"
                found.append([await play(client, session, drafts=drafts) for session in played])
                rate = sum(item["num_tokens"] for item in found[-1]) / sum(i["seconds"] for i in found[-1])
                progress.step(f"{name}: {rate:.1f} tokens/s in all")
    _check_same(found)
    return found


def _check_same(found: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Raises RuntimeError unless all passes wrote the same tokens, and forgets these."""
    written = [[item.pop("tokens") for item in one] for one in found]
    if any(one != written[0] for one in written):
        raise RuntimeError("passes of the same conversations wrote different tokens")


async def measure(num_sessions: int, num_rounds: int, sources: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns a row per pass over all rounds."""
    progress = Progress(num_rounds * len(PASSES))
    rounds = []
    for number in range(num_rounds):
        with tempfile.TemporaryDirectory(prefix="outrider-state-") as state:
            played = sessions(num_sessions, seed=number + 1)
            rounds.append(await measure_round(played, Path(state), sources, progress))
    passes = [[item for one in rounds for item in one[place]] for place in range(len(PASSES))]
    return [_row(name, found, passes) for name, found in zip(PASSES, passes, strict=True)]


def _row(
    name: str, found: Sequence[dict[str, Any]], passes: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    first, without = passes[PASSES.index("first")], passes[PASSES.index("without drafts")]
    return {
        "pass": name,
        "num_conversations": len(found),
        "tokens_per_second": interval([item["tokens_per_second"] for item in found]).median,
        "accepted_per_step": interval([item["accepted_per_step"] for item in found]).median,
        "to_first": asdict(interval(_ratios(found, first))),
        "to_without": asdict(interval(_ratios(found, without))),
        "conversations": list(found),
    }


def _ratios(found: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[float]:
    pairs = zip(found, other, strict=True)
    return [mine["tokens_per_second"] / others["tokens_per_second"] for mine, others in pairs]


def main() -> None:
    """Prints a line per pass and writes docs/results/learns.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-sessions", type=int, default=3)
    parser.add_argument("--num-rounds", type=int, default=3)
    parser.add_argument("--drafter", default=",".join(DRAFT_SOURCES), help="the sources, by commas")
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    sources = tuple(arguments.drafter.split(","))
    rows = asyncio.run(measure(arguments.num_sessions, arguments.num_rounds, sources))
    results.save("learns", rows, arguments.results)
    for row in rows:
        print(json.dumps({name: value for name, value in row.items() if name != "conversations"}))


if __name__ == "__main__":
    main()
