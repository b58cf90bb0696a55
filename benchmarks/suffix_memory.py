"""Measures the suffix memory at a million tokens: how long guesses and appends take, and what it holds.

    python -m benchmarks.suffix_memory [--num-tokens 1000000]

The text is this repository's own (source and documents) and the tiny model's solved problems, in its tokens,
in turn. Asked are problems that the memory has not seen: three tokens at a time become final, then a draft
of up to 16 is wanted. Prints one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import uvloop
from opentelemetry.trace import INVALID_SPAN
from outrider_native.suffix import TextMemory
from tokenizers import Tokenizer

from outrider.v1 import sampling_pb2
from services.drafter.memory import SuffixMemory
from services.drafter.sequence import RunningSequence
from services.drafter.snapshots import Snapshots
from services.drafter.source import Question
from services.drafter.suffix_source import SuffixSource
from training.documents import document

ROOT = Path(__file__).parents[1]
KINDS = ("*.py", "*.md", "*.proto", "*.yaml", "*.cpp", "*.h", "*.toml")
TENANT = "benchmark"
MAX_NUM_DRAFT_TOKENS = 16
TOKENS_PER_STEP = 3
NUM_SEQUENCES = 60
LONG_TEXT = 100_000


def repository_texts(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yields the files of this repository."""
    command = ["git", "ls-files", "-z", *KINDS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    for path in files:
        yield tokenizer.encode(path.read_text(), add_special_tokens=False).ids


def texts(tokenizer: Tokenizer, rng: Random) -> Iterator[tuple[list[int], int]]:
    """Yields texts and the lengths of their prompts: problems and files in turn, then problems for ever."""
    files = repository_texts(tokenizer)
    while True:
        problem = document(rng, tokenizer)
        yield problem.token_ids, problem.num_prompt_tokens
        if (file := next(files, None)) is not None:
            yield file, len(file)


class Pauses:
    """Notes for how long others had to wait for the event loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.perf_counter() - began)


def microseconds(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[len(ordered) * 99 // 100]
    return {"median": round(1e6 * statistics.median(ordered), 1), "p99": round(1e6 * p99, 1)}


async def fill(memory: SuffixMemory, num_tokens: int, tokenizer: Tokenizer) -> dict[str, float]:
    """Learns texts until so many tokens are stored."""
    rng, num_given, seconds = Random(1), 0, 0.0
    for token_ids, num_prompt_tokens in texts(tokenizer, rng):
        text = array("I", token_ids)
        began = time.perf_counter()
        await memory.remember(TENANT, text, num_prompt_tokens)
        seconds += time.perf_counter() - began
        num_given += len(text)
        if (num_stored := len(stored(memory))) >= num_tokens:
            return {
                "num_tokens": num_stored,
                "num_tokens_given": num_given,
                "learn_us_per_token": round(1e6 * seconds / num_given, 3),
                "bytes_per_token": round(stored(memory).num_bytes / num_stored, 1),
            }
    raise AssertionError("texts never end")


def stored(memory: SuffixMemory) -> TextMemory:
    found = memory.memory_of(TENANT)
    assert found is not None
    return found


@dataclass(slots=True)
class Asked:
    """What asking took, in seconds, and how many first tokens were right."""

    proposals: list[float] = field(default_factory=list)
    from_memory: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    num_right: int = 0

    async def about(self, memory: SuffixMemory, token_ids: array) -> None:
        """Runs a text through a source as a sequence that grows."""
        sequence = RunningSequence(
            id=0,
            tenant=TENANT,
            num_prompt_tokens=0,
            params=sampling_pb2.SequenceParams(),
            span=INVALID_SPAN,
        )
        source = SuffixSource(memory)
        source.open(sequence)
        for start in range(0, len(token_ids) - TOKENS_PER_STEP, TOKENS_PER_STEP):
            end = start + TOKENS_PER_STEP
            sequence.extend(token_ids[start:end])
            times = [time.perf_counter()]
            source.extend(sequence, TOKENS_PER_STEP)
            times.append(time.perf_counter())
            (guess,) = await source.guess([Question(sequence=sequence, max_num_tokens=MAX_NUM_DRAFT_TOKENS)])
            times.append(time.perf_counter())
            stored(memory).guess(sequence.token_ids, array("I"), MAX_NUM_DRAFT_TOKENS)
            times.append(time.perf_counter())
            self.appends.append((times[1] - times[0]) / TOKENS_PER_STEP)
            self.proposals.append(times[2] - times[1])
            self.from_memory.append(times[3] - times[2])
            self.num_right += guess.token_ids[:1] == (token_ids[end],)
        await source.close(sequence, finished=False)


async def ask(memory: SuffixMemory, tokenizer: Tokenizer) -> dict[str, object]:
    """Asks about sequences that the memory has not seen."""
    rng, asked = Random(2), Asked()
    for _ in range(NUM_SEQUENCES):
        await asked.about(memory, array("I", document(rng, tokenizer).token_ids))
    return {
        "num_proposals": len(asked.proposals),
        "first_token_right": round(asked.num_right / len(asked.proposals), 3),
        "proposal_us": microseconds(asked.proposals),
        "memory_alone_us": microseconds(asked.from_memory),
        "append_us_per_token": microseconds(asked.appends),
    }


def snapshot_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


async def keep(memory: SuffixMemory, num_bytes: int) -> dict[str, float]:
    """Saves the memory and restores another from it."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        await Snapshots(memory, Path(folder)).save()
        saved = time.perf_counter() - began
        size = snapshot_size(Path(folder))
        again = SuffixMemory(num_bytes)
        began = time.perf_counter()
        await Snapshots(again, Path(folder)).restore()
        restored = time.perf_counter() - began
        assert len(stored(again)) == len(stored(memory))
    return {
        "snapshot_bytes_per_token": round(size / len(stored(memory)), 2),
        "snapshot_seconds": round(saved, 3),
        "restore_seconds": round(restored, 3),
    }


async def measure(num_tokens: int) -> dict[str, object]:
    """Returns all figures."""
    tokenizer = Tokenizer.from_file(str(ROOT / "models/tiny/tokenizer.json"))
    num_bytes = 200 * num_tokens
    memory = SuffixMemory(num_bytes)
    figures: dict[str, object] = {**await fill(memory, num_tokens, tokenizer), **await ask(memory, tokenizer)}
    pauses = Pauses()
    watching = asyncio.create_task(pauses.watch())
    figures |= await keep(memory, num_bytes)
    figures["longest_pause_of_snapshots_ms"] = round(1e3 * pauses.longest, 2)
    rng = Random(3)
    long_text = array("I", (rng.randrange(160_000) for _ in range(LONG_TEXT)))
    await asyncio.sleep(0)
    pauses.longest = 0.0
    await memory.remember(TENANT, long_text, 0)
    figures["longest_pause_of_100k_tokens_learnt_ms"] = round(1e3 * pauses.longest, 2)
    watching.cancel()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures the suffix memory.")
    parser.add_argument("--num-tokens", type=int, default=1_000_000)
    print(json.dumps(uvloop.run(measure(parser.parse_args().num_tokens)), indent=2))
