"""Compares ways to choose the cached block that goes, by replaying conversations on the real block pool.

    python -m benchmarks.eviction [--num-conversations 120]

Nothing is timed: what counts is the part of all prompt tokens that the prefix cache has when they are asked
for. The texts are the agent's: sums with their worked solutions, and recorded edits, rendered by the chat
template and tokenized as the gateway does.
"""

import argparse
import json
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import results
from benchmarks.edits import encode, recorded
from benchmarks.eviction_policies import ByUses, Foreseeing, Learned, SegmentedLru, Weighted
from benchmarks.progress import Progress
from services.scheduler.blocks import BlockPool
from services.scheduler.eviction import Eviction, LeastRecentlyUsed
from training.chat import render
from training.documents import assistant, call_turns, completion, user
from training.tasks import draw
from training.tasks.tools import calculator, declaration

BLOCK_SIZE = 16
NUM_RUNNING = 4
TOOLS = [declaration("calculator", "expression", "Evaluates an arithmetic expression.")]


@dataclass(frozen=True, slots=True)
class Request:
    """The prefix hashes of a request's full blocks, and how many of them are the prompt's."""

    hashes: tuple[bytes, ...]
    num_prompt_blocks: int


def request(prompt: Sequence[int], output: Sequence[int]) -> Request:
    """Hashes the blocks of a prompt and its output as the scheduler does."""
    tokens = array("I", [*prompt, *output])
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = hashes[-1] if hashes else b""
        block = tokens[start : start + BLOCK_SIZE].tobytes()
        hashes.append(blake2b(parent + block, digest_size=16).digest())
    return Request(tuple(hashes), (len(prompt) - 1) // BLOCK_SIZE)


def conversation(rng: Random, num_turns: int) -> Iterator[Request]:
    """Yields the requests of one agent's conversation: sums with a tool, now and then an edit."""
    history: list[Any] = [{"role": "system", "content": "You are a helpful assistant."}]
    for _ in range(num_turns):
        if rng.random() < 0.3:
            edit = rng.choice(recorded())
            history.append({"role": "user", "content": edit.request})
            yield _rendered(history, f"{edit.after}<|im_end|>", thinking=False)
            history.append({"role": "assistant", "content": edit.after})
        else:
            problem = draw(rng, held_out=False, task=calculator)
            for num_calls in range(len(problem.calls) + 1):
                turns = [*history, user(problem), *call_turns(problem, num_calls)]
                yield _rendered(turns, completion(problem, num_calls))
            history += [user(problem), *call_turns(problem, len(problem.calls)), assistant(problem)]


def _rendered(messages: Sequence[Any], output: str, *, thinking: bool = True) -> Request:
    return request(encode(render(messages, tools=TOOLS, thinking=thinking)), encode(output))


def question(rng: Random) -> Request:
    """One question that nobody asks again."""
    problem = draw(rng, held_out=False)
    return _rendered([user(problem)], completion(problem, 0))


def document(rng: Random) -> Request:
    """A long text that nobody sends again."""
    text = "".join(edit.before for edit in rng.sample(recorded(), 4))
    prompt = f"{rng.random()}\n{text}"
    return _rendered([{"role": "user", "content": prompt}], "It is good.<|im_end|>")


def agents(rng: Random, count: int, *, num_open: int = 12) -> Iterator[Request]:
    """Many conversations, a number of them open at a time; each goes on at its own pace."""
    started = 0
    going: list[Iterator[Request]] = []
    while True:
        while len(going) < num_open and started < count:
            going.append(conversation(rng, rng.randint(1, 6)))
            started += 1
        if not going:
            return
        # Those opened last go on soonest, as one does that waits for a tool and not for a person.
        place = rng.choices(range(len(going)), [1 + n for n in range(len(going))])[0]
        following = next(going[place], None)
        if following is None:
            del going[place]
        else:
            yield following


def mixed(rng: Random, count: int) -> Iterator[Request]:
    """Agents, and between them texts and questions that come once."""
    for following in agents(rng, count):
        yield following
        if rng.random() < 0.2:
            yield document(rng)
        if rng.random() < 0.3:
            yield question(rng)


def repeated(rng: Random, count: int) -> Iterator[Request]:
    """The same agents' conversations three times."""
    played = list(agents(rng, count // 3))
    for _ in range(3):
        yield from played


def cycled(rng: Random, count: int) -> Iterator[Request]:
    """A few prompts in turn, for ever: where the cache is too small for all, the oldest is the next."""
    prompts = [document(rng) for _ in range(24)]
    for number in range(4 * count):
        yield prompts[number % len(prompts)]


def questions(rng: Random, count: int) -> Iterator[Request]:
    """Questions that come once."""
    for _ in range(4 * count):
        yield question(rng)


WORKLOADS: dict[str, Callable[[Random, int], Iterator[Request]]] = {
    "agents": agents,
    "agents, three times": repeated,
    "agents and texts read once": mixed,
    "questions": questions,
    "texts in turn": cycled,
}
SHARES = (0.05, 0.1, 0.2, 0.4)


def hit_rate(requests: Sequence[Request], policy: Eviction, num_blocks: int) -> float:
    """Replays requests, a few of them running at a time, and returns the part of prompt blocks found."""
    pool = BlockPool(num_blocks=num_blocks, block_size=BLOCK_SIZE, evictable=policy)
    running: deque[list[int]] = deque()
    found = asked = 0
    for number, one in enumerate(requests):
        num_needed = len(one.hashes) + 1
        while len(running) >= NUM_RUNNING or (running and pool.num_free_blocks < num_needed):
            pool.release(running.popleft())
        cached = pool.match(one.hashes[: one.num_prompt_blocks])
        pool.share(cached)
        if isinstance(policy, Foreseeing):
            policy.now = number
        table = cached + pool.allocate(num_needed - len(cached))
        for block_id, block_hash in zip(table, one.hashes, strict=False):
            pool.publish(block_id, block_hash)
            if isinstance(policy, Foreseeing):
                policy.hash_of[block_id] = block_hash
        running.append(table)
        found += len(cached)
        asked += one.num_prompt_blocks
    return found / asked


def policies(requests: Sequence[Request], num_blocks: int) -> dict[str, Eviction]:
    """Returns the ways to choose."""
    needed_at: dict[bytes, list[int]] = {}
    for number, one in enumerate(requests):
        for block_hash in one.hashes[: one.num_prompt_blocks]:
            needed_at.setdefault(block_hash, []).append(number)
    return {
        "least recently used": LeastRecentlyUsed(),
        "segmented": SegmentedLru(),
        "weighted by uses": ByUses(Weighted()),
        "learned": ByUses(Learned(half_life=8 * num_blocks)),
        "foreseeing": Foreseeing(needed_at),
    }


def measure(num_conversations: int) -> list[dict[str, Any]]:
    """Returns a row per workload and size of the cache; sizes are shares of all blocks that it writes."""
    rows: list[dict[str, Any]] = []
    progress = Progress(len(WORKLOADS))
    for name, workload in WORKLOADS.items():
        requests = list(workload(Random(1), num_conversations))
        num_distinct = len({block_hash for one in requests for block_hash in one.hashes})
        fewest = 2 * max(len(one.hashes) for one in requests)
        for num_blocks in sorted({max(fewest, int(share * num_distinct)) for share in SHARES}):
            candidates = policies(requests, num_blocks).items()
            rates = {label: round(hit_rate(requests, policy, num_blocks), 4) for label, policy in candidates}
            rows.append({"workload": name, "num_blocks": num_blocks, **rates})
        progress.step(name)
    return rows


def main() -> None:
    """Prints a line per workload and size, and writes docs/results/eviction.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-conversations", type=int, default=120)
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    rows = measure(arguments.num_conversations)
    results.save("eviction", rows, arguments.results)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
