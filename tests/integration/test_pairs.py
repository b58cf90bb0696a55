"""Two real pairs behind real gateways: who is asked, and what comes of a loss, a stop or a drain."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outrider.client import Answer, Client, Stream
from tests.pairs import Pairs, running_pairs

LONG = "Sort 42, 7, 19, 3 and 56. " * 8
NUM_TOKENS = 200
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
        return opened.generate(LONG, max_tokens=NUM_TOKENS, seed=5, **OPTIONS).result()


def long_answer(client: Client) -> Stream:
    return client.generate(LONG, max_tokens=NUM_TOKENS, seed=5, **OPTIONS)


def busy_place(pairs: Pairs, gateway: int = 0) -> int:
    """Returns which pair runs the only request."""
    (place,) = [place for place, found in enumerate(pairs.stats(gateway)) if found.num_requests]
    return place


def read(stream: Stream, num_tokens: int) -> list[int]:
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
    read(stream, 20)
    place = busy_place(pairs)
    pairs.schedulers[place].end()
    read(stream, 20)
    assert busy_place(pairs) == 1 - place
    pairs.schedulers[place].start()
    assert stream.result().token_ids == undisturbed.token_ids


@pytest.mark.parametrize("kind", ["scheduler", "worker"])
def test_an_answer_goes_on_at_the_other_pair_when_a_process_is_stopped(
    pairs: Pairs, client: Client, undisturbed: Answer, kind: str
) -> None:
    stream = long_answer(client)
    read(stream, 20)
    place = busy_place(pairs)
    stopped = (pairs.schedulers if kind == "scheduler" else pairs.workers)[place]
    stopped.send(signal.SIGSTOP)
    try:
        assert stream.result().token_ids == undisturbed.token_ids
        assert not pairs.stats()[place].takes_requests
    finally:
        stopped.send(signal.SIGCONT)


def test_a_drained_pair_takes_nothing_new_and_what_outlasts_its_grace_moves(
    pairs: Pairs, client: Client, undisturbed: Answer
) -> None:
    stream = client.generate(LONG, max_tokens=20 * NUM_TOKENS, seed=5, **OPTIONS)
    tokens = read(stream, 20)
    place = busy_place(pairs)
    pairs.schedulers[place].send(signal.SIGTERM)
    pairs.until(lambda found: not found[place].takes_requests)
    running = pairs.stats()[place]
    for _ in range(2):
        assert len(client.generate("1, 2, 3,", max_tokens=4, **OPTIONS).result().token_ids) == 4
    assert (running.num_requests, running.connected) == (1, True)
    pairs.until(lambda found: found[1 - place].num_requests == 1)
    assert pairs.schedulers[place].process.wait() == 0
    pairs.schedulers[place].start()
    tokens += read(stream, NUM_TOKENS)
    assert tuple(tokens[:NUM_TOKENS]) == undisturbed.token_ids
    stream.cancel()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_client_goes_on_at_the_other_gateway(
    pairs: Pairs, client: Client, undisturbed: Answer, number: signal.Signals
) -> None:
    with Client(pairs.targets) as both:
        stream = long_answer(both)
        read(stream, 20)
        place = next(i for i in range(2) if any(found.num_requests for found in pairs.stats(i)))
        pairs.gateways[place].send(number)
        try:
            assert stream.result().token_ids == undisturbed.token_ids
            assert both.models()[0].name == "tiny"
        finally:
            pairs.gateways[place].end()
            pairs.gateways[place].start()
