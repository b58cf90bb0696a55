"""Choosing tokens and comparing them with drafts: a few launches for all rows, and nothing read back.

    maxima -> (histogram -> pick) x 3 for top-k, and for top-p -> choose -> verify

Every kernel after the first reads only the tiles whose maxima say that something in them can matter.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.interface import SamplingRows, Verified
from outrider.kernels.triton.filters import filter_launches
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.philox import gumbel, most_gumbel, token_words
from outrider.kernels.triton.sample_rows import (
    CHOICE,
    INFINITY,
    LIMIT,
    LOG_MIN_P,
    NO_WINNER,
    NUM_PARAMETERS,
    NUM_SEARCHES,
    POSITION,
    SEED_HIGH,
    SEED_LOW,
    TEMPERATURE,
    Rows,
    empty_rows,
    maxima_launch,
    rank_of,
    row_maximum,
    score_of,
)

# Noise lies in [-3.14, 22.88].
LEAST_NOISE = tl.constexpr(-3.2)
MAX_DISTANCE = tl.constexpr(26.1)
TOKEN_BITS = tl.constexpr(31)
LAST_TOKEN = tl.constexpr(2**31 - 1)


def sample_and_verify(logits: Tensor, scores: Tensor, rows: SamplingRows) -> Verified:
    """Chooses each row's token and compares it with the draft; see Kernels."""
    verified = empty_verified(rows)
    for launch in sample_launches(logits, scores, rows, verified):
        launch.run()
    return verified


def empty_verified(rows: SamplingRows) -> Verified:
    """Room for the result."""
    R, B, device = len(rows.drafts), len(rows.firsts) - 1, rows.drafts.device
    return Verified(
        tokens=torch.empty(R, dtype=torch.int64, device=device),
        finite=torch.empty(R, dtype=torch.bool, device=device),
        num_accepted=torch.empty(B, dtype=torch.int64, device=device),
        bonus=torch.empty(B, dtype=torch.int64, device=device),
    )


def sample_launches(
    logits: Tensor, scores: Tensor, rows: SamplingRows, verified: Verified
) -> Iterator[Launch]:
    """All launches in their order, for scores [R, V] and logits of the same shape, both dense."""
    room = empty_rows(scores, rows.parameters)
    yield maxima_launch(logits, room)
    if rows.any_top_k or rows.any_top_p:
        yield from filter_launches(room, top_k=rows.any_top_k, top_p=rows.any_top_p)
    yield choose_launch(room, verified)
    yield verify_launch(room, rows, verified)


def choose_launch(rows: Rows, verified: Verified) -> Launch:
    """The best token of each row, and whether the row is finite."""
    return Launch(
        kernel=choose_kernel,
        grid=rows.grid,
        arguments={**rows.arguments, "winners_ptr": rows.winners, "finite_ptr": verified.finite},
        constants=rows.blocks,
        num_warps=8,
    )


def verify_launch(rows: Rows, wanted: SamplingRows, verified: Verified) -> Launch:
    """The tokens of each sequence beside its drafts."""
    return Launch(
        kernel=verify_kernel,
        grid=(len(verified.bonus),),
        arguments={
            "winners_ptr": rows.winners,
            "drafts_ptr": wanted.drafts,
            "firsts_ptr": wanted.firsts,
            "tokens_ptr": verified.tokens,
            "num_accepted_ptr": verified.num_accepted,
            "bonus_ptr": verified.bonus,
        },
        constants={"BLOCK_R": 16},
        num_warps=1,
    )


@triton.jit
def choose_kernel(
    scores_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    maxima_ptr: tl.tensor,
    searches_ptr: tl.tensor,
    winners_ptr: tl.tensor,
    finite_ptr: tl.tensor,
    V: int,
    num_tiles: int,
    tiles_per_program: int,
    TILE: tl.constexpr,
    BLOCK_T: tl.constexpr,
) -> None:
    """token = argmax of score / temperature + noise of what is kept: scores [R, V] -> winners, finite [R].

    Noise is made only for tiles with a token that may beat the best so far, by a bound that is cheap.
    """
    row = tl.program_id(0).to(tl.int64)
    parameters = parameters_ptr + row * NUM_PARAMETERS
    best = row_maximum(maxima_ptr, row, num_tiles, BLOCK_T)
    first = tl.program_id(1) * tiles_per_program
    end = tl.minimum(first + tiles_per_program, num_tiles)
    if first == 0:
        tl.store(finite_ptr + row, best < INFINITY)
    if tl.abs(best) < INFINITY:
        temperature = tl.load(parameters + TEMPERATURE).to(tl.float32)
        winner = tl.full((), NO_WINNER, tl.int64)
        if temperature > 0:
            top = tl.div_rn(best, temperature)
            limit = tl.load(searches_ptr + row * NUM_SEARCHES + LIMIT).to(tl.uint32)
            lowest = tl.maximum(score_of(limit), top + tl.load(parameters + LOG_MIN_P).to(tl.float32))
            lowest = tl.maximum(lowest, top - MAX_DISTANCE)
            leader = top + LEAST_NOISE
            for tile in range(first, end):
                highest = tl.div_rn(tl.load(maxima_ptr + row * num_tiles + tile), temperature)
                if highest >= lowest:
                    groups = tile * (TILE // 4) + tl.arange(0, TILE // 4)
                    tokens = groups[:, None] * 4 + tl.arange(0, 4)[None, :]
                    scores = tl.load(scores_ptr + row * V + tokens, mask=tokens < V, other=-INFINITY)
                    scores = tl.div_rn(scores, temperature)
                    scores = tl.where(scores >= lowest, scores, -INFINITY)
                    words = row_words(parameters, groups)
                    if tl.max(scores + most_gumbel(words)) >= leader:
                        won = winner_of(scores + gumbel(words), tokens)
                        winner = tl.maximum(winner, won)
                        leader = tl.maximum(leader, value_of(winner))
        else:
            for tile in range(first, end):
                if tl.load(maxima_ptr + row * num_tiles + tile) == best:
                    tokens = tile * TILE + tl.arange(0, TILE)
                    scores = tl.load(scores_ptr + row * V + tokens, mask=tokens < V, other=-INFINITY)
                    winner = tl.maximum(winner, winner_of(scores, tokens))
        if winner > NO_WINNER:
            tl.atomic_max(winners_ptr + row, winner, sem="relaxed")


@triton.jit
def verify_kernel(
    winners_ptr: tl.tensor,
    drafts_ptr: tl.tensor,
    firsts_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    num_accepted_ptr: tl.tensor,
    bonus_ptr: tl.tensor,
    BLOCK_R: tl.constexpr,
) -> None:
    """Leading drafts that are right, and the token behind: winners, drafts [R] -> tokens [R], [B], [B]."""
    sequence = tl.program_id(0)
    first = tl.load(firsts_ptr + sequence).to(tl.int32)
    end = tl.load(firsts_ptr + sequence + 1).to(tl.int32)
    first_wrong = end
    for start in range(first, end, BLOCK_R):
        offs = start + tl.arange(0, BLOCK_R)
        tokens = token_of(tl.load(winners_ptr + offs, mask=offs < end, other=NO_WINNER))
        drafts = tl.load(drafts_ptr + offs, mask=offs < end, other=-1)
        tl.store(tokens_ptr + offs, tokens, mask=offs < end)
        is_wrong = (tokens != drafts) | (tokens < 0)
        first_wrong = tl.minimum(first_wrong, tl.min(tl.where(is_wrong, offs, end)))
    bonus = token_of(tl.load(winners_ptr + first_wrong, mask=first_wrong < end, other=NO_WINNER))
    tl.store(num_accepted_ptr + sequence, (first_wrong - first).to(tl.int64))
    tl.store(bonus_ptr + sequence, bonus)


@triton.jit
def row_words(parameters: tl.tensor, groups: tl.tensor) -> tl.tensor:
    """The random words of a row's tokens: [G] -> [G, 4]."""
    seed_low = tl.load(parameters + SEED_LOW).to(tl.int64).to(tl.uint32)
    seed_high = tl.load(parameters + SEED_HIGH).to(tl.int64).to(tl.uint32)
    choice = tl.load(parameters + CHOICE).to(tl.int64).to(tl.uint32)
    position = tl.load(parameters + POSITION).to(tl.int64).to(tl.uint32)
    return token_words(groups, position, choice, seed_low, seed_high)


@triton.jit
def winner_of(values: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """The highest value and the lowest token that has it as one number; the higher it is, the better."""
    best = tl.max(values)
    token = tl.min(tl.where(values == best, tokens, LAST_TOKEN)).to(tl.int64)
    place = (0xFFFFFFFF - rank_of(best)).to(tl.int64)
    return tl.where(best > -INFINITY, (place << TOKEN_BITS) | (LAST_TOKEN - token), NO_WINNER)


@triton.jit
def token_of(winner: tl.tensor) -> tl.tensor:
    """The token of a winner; -1 where there is none."""
    return tl.where(winner < 0, -1, LAST_TOKEN - (winner & LAST_TOKEN))


@triton.jit
def value_of(winner: tl.tensor) -> tl.tensor:
    """The value of a winner, minus infinity where there is none."""
    rank = 0xFFFFFFFF - (winner >> TOKEN_BITS).to(tl.uint32)
    return tl.where(winner < 0, -INFINITY, score_of(rank))
