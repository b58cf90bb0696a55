"""Philox4x32-10 and the Gumbel noise made from it, as kernels' functions; see the reference of that name."""

import triton
import triton.language as tl

MULTIPLIER_0 = tl.constexpr(0xD2511F53)
MULTIPLIER_1 = tl.constexpr(0xCD9E8D57)
KEY_STEP_0 = tl.constexpr(0x9E3779B9)
KEY_STEP_1 = tl.constexpr(0xBB67AE85)
UNIT = tl.constexpr(2.0**-32)


@triton.jit
def philox4x32_10(
    counter_0: tl.tensor,
    counter_1: tl.tensor,
    counter_2: tl.tensor,
    counter_3: tl.tensor,
    key_0: tl.tensor,
    key_1: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Four random words per element; all are uint32, counters of one shape, keys scalars.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (SC 2011).
    """
    for _ in range(10):
        product_0 = counter_0.to(tl.uint64) * MULTIPLIER_0
        product_1 = counter_2.to(tl.uint64) * MULTIPLIER_1
        counter_0 = (product_1 >> 32).to(tl.uint32) ^ counter_1 ^ key_0
        counter_2 = (product_0 >> 32).to(tl.uint32) ^ counter_3 ^ key_1
        counter_1 = product_1.to(tl.uint32)
        counter_3 = product_0.to(tl.uint32)
        key_0 += KEY_STEP_0
        key_1 += KEY_STEP_1
    return counter_0, counter_1, counter_2, counter_3


@triton.jit
def token_words(
    group: tl.tensor, position: tl.tensor, choice: tl.tensor, key_0: tl.tensor, key_1: tl.tensor
) -> tl.tensor:
    """The words of tokens 4 * group to 4 * group + 3: [G] int32 -> [G, 4] uint32; the others are uint32."""
    first = group.to(tl.uint32)
    zero = tl.zeros_like(first)
    word_0, word_1, word_2, word_3 = philox4x32_10(first, zero + position, zero + choice, zero, key_0, key_1)
    words = tl.join(tl.join(word_0, word_2), tl.join(word_1, word_3))
    return tl.reshape(words, (group.shape[0], 4))


@triton.jit
def gumbel(words: tl.tensor) -> tl.tensor:
    """-log(-log(u)) in fp32 of u = (word + 0.5) / 2^32, both logs in fp64 and rounded once."""
    u = (words.to(tl.float64) + 0.5) * UNIT
    return (-tl.log(-tl.log(u))).to(tl.float32)


@triton.jit
def most_gumbel(words: tl.tensor) -> tl.tensor:
    """What the noise does not exceed, close to it where it is large: -log(1 - u), with room for rounding."""
    return 1e-4 - tl.log(((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * UNIT)
