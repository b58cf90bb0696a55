"""Two real pairs behind real gateways: who is asked, and what happens when one is lost, stopped or drained."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outrider.client import Answer, Client, Stream
from tests.pairs import Pairs, running_pairs

LONG = "Sort 42, 7, 19, 3 and 56. " * 8
OPTIONS: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "min_tokens": 1}


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    with running_pairs() as running:
        yield running


@pytest.fixture
def client(pairs: Pairs) -> Iterator[Client]:
    """Asks the first gateway, once all are well."""
    pairs.until_all_take_requests()
    with Client(pairs.gateways[0].address) as opened:
        yield opened


@pytest.fixture(scope="module")
def undisturbed(pairs: Pairs) -> Answer:
    """A long answer that nothing happened to."""
    with Client(pairs.targets) as opened:
        return opened.generate(LONG, max_tokens=400, seed=5, **OPTIONS).result()


def long_answer(client: Client) -> Stream:
    return client.generate(LONG, max_tokens=400, seed=5, **OPTIONS)


def busy_place(pairs: Pairs, gateway: int = 0) -> int:
    """Returns which pair runs the only request."""
    (place,) = [place for place, found in enumerate(pairs.stats(gateway)) if found.num_requests]
    return place


def token_ids(stream: Stream, num_tokens: int) -> list[int]:
    """Reads so many tokens at least."""
    found: list[int] = []
    while len(found) < num_tokens:
        found.extend(next(stream).token_ids)
    return found


def test_what_begins_alike_goes_to_where_it_was_computed(pairs: Pairs, client: Client) -> None:
    prompts = [f"{letter}. " + LONG for letter in "ABCD"]
    for prompt in prompts:
        client.generate(prompt, max_tokens=2, **OPTIONS).result()
    again = [client.generate(prompt + " Again.", max_tokens=2, **OPTIONS).result() for prompt in prompts]
    for answer in again:
        assert answer.usage.cached_tokens > answer.usage.prompt_tokens // 2
    assert all(found.num_known_blocks for found in pairs.stats())


def test_requests_at_the_same_time_are_spread_over_the_pairs(pairs: Pairs, client: Client) -> None:
    before = [found.load.num_output_tokens for found in pairs.stats()]
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(lambda: client.generate("1, 2, 3,", max_tokens=40, **OPTIONS).result())]
        asked += [
            threads.submit(lambda n=n: client.generate(f"{n}, 2, 3,", max_tokens=40, **OPTIONS).result())
            for n in range(2, 9)
        ]
        assert sum(len(one.result().token_ids) for one in asked) == 320
    pairs.until(lambda after: sum(found.load.num_output_tokens for found in after) >= sum(before) + 320)
    shares = [found.load.num_output_tokens - then for found, then in zip(pairs.stats(), before, strict=True)]
    assert min(shares) >= 80


def test_an_answer_goes_on_at_the_other_pair_when_its_scheduler_is_killed(
    pairs: Pairs, client: Client, undisturbed: Answer
) -> None:
    stream = long_answer(client)
    known = token_ids(stream, 20)
    place = busy_place(pairs)
    pairs.schedulers[place].end()
    known += token_ids(stream, 20)
    assert busy_place(pairs) == 1 - place
    pairs.schedulers[place].start()
    assert stream.result().token_ids == undisturbed.token_ids
    assert list(undisturbed.token_ids[: len(known)]) == known
