"""Tokens chosen and verified by kernels, against the reference backend and against plain Python."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.kernels import torch as reference_backend
from outrider.kernels.interface import SamplingRows, Verified
from outrider.kernels.torch import filters
from outrider.kernels.torch.philox import gumbel_noise
from outrider.kernels.triton import sample_rows
from outrider.kernels.triton.filters import filter_launches
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.philox import gumbel, most_gumbel, philox4x32_10, token_words
from outrider.kernels.triton.sample_rows import LARGEST_TILE, Rows, empty_rows, maxima_launch
from outrider.kernels.triton.sample_verify import empty_verified, sample_and_verify, verify_launch
from tests.unit.sampling import reference
from tests.unit.sampling.test_philox import VECTORS, parse

INF = float("inf")
# Cumulated probabilities of the kernels and of the reference agree this closely.
MASS_ERROR = 2.0**-18


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """Memory that was not written holds NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@triton.jit
def words_kernel(inputs_ptr: tl.tensor, words_ptr: tl.tensor) -> None:
    """Philox of counters and keys: [n, 6] -> [n, 4], uint32 held in int64."""
    offs = tl.program_id(0) * 6 + tl.arange(0, 1)
    words = philox4x32_10(
        tl.load(inputs_ptr + offs).to(tl.uint32),
        tl.load(inputs_ptr + offs + 1).to(tl.uint32),
        tl.load(inputs_ptr + offs + 2).to(tl.uint32),
        tl.load(inputs_ptr + offs + 3).to(tl.uint32),
        tl.load(inputs_ptr + offs + 4).to(tl.uint32),
        tl.load(inputs_ptr + offs + 5).to(tl.uint32),
    )
    offs = tl.program_id(0) * 4 + tl.arange(0, 1)
    for place in tl.static_range(4):
        tl.store(words_ptr + offs + place, words[place].to(tl.int64))


@triton.jit
def noise_kernel(
    keys_ptr: tl.tensor, noise_ptr: tl.tensor, most_ptr: tl.tensor, first_group: int, GROUPS: tl.constexpr
) -> None:
    """Noise of tokens from 4 * first_group on, by seed, choice and position: [n, 4] -> [n, GROUPS, 4]."""
    key = keys_ptr + tl.program_id(0) * 4
    words = token_words(
        first_group + tl.arange(0, GROUPS),
        tl.load(key + 3).to(tl.uint32),
        tl.load(key + 2).to(tl.uint32),
        tl.load(key).to(tl.uint32),
        tl.load(key + 1).to(tl.uint32),
    )
    offs = (tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]) * 4 + tl.arange(0, 4)[None, :]
    tl.store(noise_ptr + offs, gumbel(words))
    tl.store(most_ptr + offs, most_gumbel(words))


@triton.jit
def extremes_kernel(words_ptr: tl.tensor, noise_ptr: tl.tensor, most_ptr: tl.tensor, N: tl.constexpr) -> None:
    """Noise of words: [N] -> [N]."""
    offs = tl.arange(0, N)
    words = tl.load(words_ptr + offs).to(tl.uint32)
    tl.store(noise_ptr + offs, gumbel(words))
    tl.store(most_ptr + offs, most_gumbel(words))


def run(kernel: Any, num_programs: int, **arguments: Any) -> None:
    Launch(kernel=kernel, grid=(num_programs,), arguments=arguments).run()


def random_rows(seed: int, num_rows: int, **changes: float | list[float]) -> SamplingRows:
    """Rows of every mix of parameters, or with the columns that are named, in sequences of three."""
    generator = np.random.default_rng(seed)
    columns = {
        "temperature": generator.choice([0.0, 0.8, 1.0, 1.5], num_rows),
        "top_k": generator.choice([0, 1, 7, 50, 100_000], num_rows),
        "top_p": generator.choice([1.0, 0.95, 0.5, 0.05], num_rows),
        "log_min_p": generator.choice([-INF, np.log(0.05)], num_rows),
        "seed_low": generator.integers(2**32, size=num_rows),
        "seed_high": generator.integers(2**21, size=num_rows),
        "choice": generator.integers(4, size=num_rows),
        "position": generator.integers(2**18, size=num_rows),
    }
    columns |= {name: np.broadcast_to(value, num_rows) for name, value in changes.items()}
    firsts = [*range(0, num_rows, 3), num_rows]
    return SamplingRows(
        parameters=torch.from_numpy(np.column_stack(list(columns.values())).astype(np.float64)),
        drafts=torch.full((num_rows,), -1),
        firsts=torch.tensor(firsts),
        any_top_k=bool((columns["top_k"] > 0).any()),
        any_top_p=bool((columns["top_p"] < 1).any()),
    )


def random_logits(seed: int, num_rows: int, vocab_size: int, *, ties: bool = False) -> Tensor:
    """Random scores; with ties a few values, zeros of both signs among them, are most of the row."""
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits / 2).round() * 2 if ties else logits


def is_clear(scores: Tensor, top_p: float, top_k: int) -> bool:
    """Whether no cumulated probability lies where rounding decides what top-p keeps."""
    kept = scores.double().sort(descending=True).values
    if 0 < top_k < len(kept):
        kept = kept[kept >= kept[top_k - 1]]
    return bool(((kept.softmax(0).cumsum(0) - top_p).abs() > MASS_ERROR).all())


def assert_like_the_reference(logits: Tensor, rows: SamplingRows, scores: Tensor | None = None) -> Verified:
    scores = logits if scores is None else scores
    expected = reference_backend.sample_and_verify(logits, scores, rows)
    verified = sample_and_verify(logits, scores, rows)
    for name in ("tokens", "finite", "num_accepted", "bonus"):
        assert torch.equal(getattr(verified, name), getattr(expected, name)), name
    return verified


def limits_of(scores: Tensor, rows: SamplingRows) -> Tensor:
    """The last scores that the kernels' filters keep: [R]."""
    room = empty_rows(scores, rows.parameters)
    maxima_launch(scores, room).run()
    for launch in filter_launches(room, top_k=rows.any_top_k, top_p=rows.any_top_p):
        launch.run()
    ranks = room.searches[:, sample_rows.LIMIT.value].numpy()
    return torch.from_numpy(
        np.where(ranks >= 2**31, ranks, 2**31 - 1 - ranks).astype(np.uint32).view(np.float32)
    )


def expected_limits(scores: Tensor, rows: SamplingRows) -> Tensor:
    """The lowest scores that the reference's filters keep: [R]."""
    temperature, top_k, top_p = rows.parameters[:, :3].unbind(dim=1)
    scores = scores / temperature.float()[:, None]
    filters.filter_top_k(scores, top_k.long())
    filters.filter_top_p(scores, top_p)
    return torch.where(scores > -INF, scores, INF).amin(dim=1)


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_philox_gives_the_published_words(counter, key, result):
    words = torch.empty(1, 4, dtype=torch.int64)
    run(words_kernel, 1, inputs_ptr=torch.tensor([[*parse(counter), *parse(key)]]), words_ptr=words)
    assert words[0].tolist() == parse(result)


def test_philox_equals_the_definition():
    inputs = np.random.default_rng(1).integers(2**32, size=(40, 6))
    words = torch.empty(len(inputs), 4, dtype=torch.int64)
    run(words_kernel, len(inputs), inputs_ptr=torch.from_numpy(inputs), words_ptr=words)
    expected = [reference.philox(row[:4], row[4:]) for row in inputs.tolist()]
    assert words.tolist() == [list(row) for row in expected]


@pytest.mark.parametrize("first_group", [0, 40_920])
def test_noise_equals_the_reference_bit_for_bit_and_is_never_above_its_bound(first_group):
    generator = np.random.default_rng(first_group)
    keys = torch.from_numpy(generator.integers(2**32, size=(12, 4)))
    noise, most = torch.empty(2, 12, 1024, 4).unbind()
    tensors = {"keys_ptr": keys, "noise_ptr": noise, "most_ptr": most}
    run(noise_kernel, 12, **tensors, first_group=first_group, GROUPS=1024)
    low, high, choice, position = (column[:, None] for column in keys.unbind(dim=1))
    groups = first_group + torch.arange(1024)[None]
    assert torch.equal(noise, gumbel_noise((low, high), choice, position, groups))
    assert (noise <= most).all()
    assert (most - noise)[noise > 5].max() < 0.01


def test_the_extremes_of_the_noise_are_finite_and_below_their_bounds():
    words = torch.tensor([0, 1, 2**31, 2**32 - 2**8, 2**32 - 129, 2**32 - 2, 2**32 - 1, 7])
    noise, most = torch.empty(2, 8).unbind()
    run(extremes_kernel, 1, words_ptr=words, noise_ptr=noise, most_ptr=most, N=8)
    expected = torch.from_numpy(-np.log(-np.log((words.numpy() + 0.5) * 2.0**-32))).float()
    assert torch.equal(noise, expected)
    assert (noise <= most).all()
    assert most.isfinite().all()


@pytest.mark.parametrize(("vocab_size", "num_rows"), [(97, 10), (1000, 6), (LARGEST_TILE + 3, 6)])
@pytest.mark.parametrize("ties", [False, True])
def test_tokens_are_those_of_the_reference(vocab_size, num_rows, ties):
    rows = random_rows(vocab_size + ties, num_rows)
    assert_like_the_reference(random_logits(vocab_size, num_rows, vocab_size, ties=ties), rows)


@pytest.mark.parametrize("vocab_size", [5, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_top_k_keeps_what_the_reference_keeps(vocab_size, ties):
    rows = random_rows(1, 6, temperature=[0.7, 1, 1, 1, 3, 1], top_k=[1, 2, 3, 50, 999, 1001], top_p=1.0)
    scores = random_logits(vocab_size, 6, vocab_size, ties=ties)
    expected = expected_limits(scores, rows)
    found = limits_of(scores, rows)
    is_searched = rows.parameters[:, 1] < vocab_size
    assert torch.equal(found[is_searched], expected[is_searched])
    assert (found[~is_searched] == -INF).all()


@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_top_p_keeps_what_the_reference_keeps(top_k, ties):
    top_p = [0.001, 0.1, 0.5, 0.9, 0.99, 0.9999]
    rows = random_rows(2, 6, temperature=[0.2, 1, 1, 1, 1, 4], top_k=top_k, top_p=top_p)
    scores = random_logits(9, 6, 1000, ties=ties)
    temperatures = rows.parameters[:, 0].float()
    assert all(map(is_clear, scores / temperatures[:, None], top_p, [top_k] * 6))
    assert torch.equal(limits_of(scores, rows), expected_limits(scores, rows))


def test_no_top_p_at_all_keeps_the_best_score():
    logits = random_logits(8, 3, 1000)
    rows = random_rows(3, 3, temperature=1.0, top_k=0, top_p=0.0)
    assert torch.equal(sample_and_verify(logits, logits, rows).tokens, logits.argmax(dim=1))


def test_scores_near_zero_are_told_apart():
    scores = torch.tensor([[-0.0, 0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-7, -1e-7, 2.0, -2.0, 1e-30, -1e-30]])
    for top_k in range(1, 12):
        rows = random_rows(3, 1, temperature=1.0, top_k=top_k, top_p=1.0)
        assert limits_of(scores, rows).tolist() == expected_limits(scores, rows).tolist()


def test_many_equal_scores_are_all_kept_and_the_lowest_best_token_wins():
    scores = torch.zeros(3, LARGEST_TILE + 3)
    scores[:, -1] = 1.0
    scores[1:, 5] = 1.0
    verified = assert_like_the_reference(scores, random_rows(4, 3, temperature=[0.0, 0.0, 1.0], top_k=3))
    assert verified.tokens[:2].tolist() == [LARGEST_TILE + 2, 5]


def test_zeros_tie_whatever_their_sign():
    scores = torch.full((1, LARGEST_TILE + 3), -1.0)
    scores[0, 5], scores[0, -1] = -0.0, 0.0
    assert assert_like_the_reference(scores, random_rows(4, 1, temperature=0.0)).tokens.tolist() == [5]


def test_a_row_gets_its_only_token_or_none():
    logits = random_logits(5, 4, LARGEST_TILE + 3)
    scores = torch.full_like(logits, -INF)
    scores[0, 77] = scores[1, LARGEST_TILE] = -3.0
    rows = random_rows(5, 4, temperature=[1.0, 0.0, 1.0, 0.0], top_k=5, top_p=0.9)
    assert assert_like_the_reference(logits, rows, scores).tokens.tolist() == [77, LARGEST_TILE, -1, -1]


@pytest.mark.parametrize("is_edited", [False, True])
def test_rows_that_are_not_finite_are_flagged_and_have_no_token(is_edited):
    logits = random_logits(6, 5, 97)
    scores = logits + 1 if is_edited else logits
    logits[1, 96], logits[2, 0], logits[3, 50] = float("nan"), INF, -INF
    rows = random_rows(6, 5, temperature=[1, 1, 0, 1, 0])
    verified = assert_like_the_reference(logits, rows, scores)
    assert verified.finite.tolist() == [True, False, False, False, True]
    assert (verified.tokens >= 0).tolist() == verified.finite.tolist()


@pytest.mark.parametrize("tiles_per_program", [2, 3])
def test_a_row_gets_the_same_token_alone_and_in_any_batch_and_cut(tiles_per_program, monkeypatch):
    monkeypatch.setattr(sample_rows, "LARGEST_TILE", 128)
    rows = random_rows(7, 3, temperature=[0.8, 1.5, 0.0], top_k=[0, 40, 0])
    logits = random_logits(7, 3, 300)
    together = sample_and_verify(logits, logits, rows).tokens
    monkeypatch.setattr(sample_rows, "NUM_PROGRAMS", 3 * 3 // tiles_per_program)
    order = torch.tensor([2, 0, 1])
    shuffled = SamplingRows(
        parameters=rows.parameters[order],
        drafts=rows.drafts,
        firsts=rows.firsts,
        any_top_k=True,
        any_top_p=True,
    )
    assert empty_rows(logits, rows.parameters).tiles_per_program == tiles_per_program
    assert torch.equal(sample_and_verify(logits[order], logits[order], shuffled).tokens, together[order])


@settings(max_examples=12)
@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), max_size=40), min_size=1, max_size=4)
)
def test_drafts_are_accepted_up_to_the_first_that_is_wrong(sequences):
    """Each sequence is a list of (token, draft); what is behind its last row cannot be accepted."""
    sequences.sort(key=lambda pairs: not pairs)
    tokens = [token for pairs in sequences for token, _ in pairs]
    drafts = [
        draft for pairs in sequences for draft in [*(draft for _, draft in pairs[:-1]), -1][: len(pairs)]
    ]
    firsts = np.cumsum([0, *map(len, sequences)])
    room = empty_rows(torch.empty(len(tokens), 97), torch.empty(len(tokens), 8))
    room.winners.copy_(torch.tensor([2**31 - 1 - token if token >= 0 else -1 for token in tokens]))
    wanted = SamplingRows(
        parameters=room.parameters,
        drafts=torch.tensor(drafts, dtype=torch.int64),
        firsts=torch.from_numpy(firsts),
        any_top_k=False,
        any_top_p=False,
    )
    verified = empty_verified(wanted)
    verify_launch(room, wanted, verified).run()
    assert verified.tokens.tolist() == tokens
    for sequence, first in enumerate(firsts[:-1]):
        own = range(first, firsts[sequence + 1])
        wrong = [row for row in own if tokens[row] != drafts[row] or tokens[row] < 0]
        expected = (wrong[0] - first, tokens[wrong[0]]) if wrong else (0, -1)
        assert (verified.num_accepted[sequence], verified.bonus[sequence]) == expected


def test_launches_say_how_rows_are_cut():
    few, many = (empty_rows(torch.empty(R, 163_840, device="meta"), torch.empty(R, 8)) for R in (8, 4096))
    assert isinstance(few, Rows)
    assert few.grid == (8, 40)
    assert many.grid == (4096, 1)
