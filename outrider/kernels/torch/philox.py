"""Philox4x32-10 and the Gumbel noise made from it: randomness as a pure function of its inputs."""

import numpy as np
import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32_10(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Returns four random 32-bit words per element; words are held in int64 and the inputs broadcast.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (SC 2011). An unsigned product of
    32-bit words fills 64 bits, so int64 holds its bits; the shift drags the sign along, hence the mask. The
    odd words stay unmasked between rounds: they reach a product only through a masked xor. The time of a few
    rows is the number of calls: both halves of a round share calls, in buffers that are used over and over.
    """
    # numpy's takes a fifth of the time of torch's, and imports nothing on first use.
    shape = np.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    even = torch.stack([counter[0].expand(shape), counter[2].expand(shape)])  # words 0 and 2
    odd = torch.stack([counter[1].expand(shape), counter[3].expand(shape)])  # words 1 and 3
    products = torch.empty_like(odd)
    even0, even1 = even.unbind()
    halves, next_halves = odd.unbind(), products.unbind()
    # Tensors: wrapping a Python number takes a third of a call's time.
    multiplier0, multiplier1, mask, shift = torch.tensor(
        [*_MULTIPLIERS, _MASK, 32], device=even.device
    ).unbind()
    for round_key in _round_keys(key, len(shape)):
        # The products change places: word 0 comes of that of word 2.
        torch.mul(even1, multiplier1, out=next_halves[0])
        torch.mul(even0, multiplier0, out=next_halves[1])
        torch.bitwise_right_shift(products, shift, out=even)
        even.bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(mask)
        odd, products, halves, next_halves = products, odd, next_halves, halves
    odd.bitwise_and_(_MASK)
    return even[0], odd[0], even[1], odd[1]


def _round_keys(key: tuple[Tensor, Tensor], num_dimensions: int) -> tuple[Tensor, ...]:
    """Returns the keys of the ten rounds, both words of each along a first dimension."""
    words = torch.stack(torch.broadcast_tensors(*key))
    words = words.view(2, *(1 for _ in range(num_dimensions - words.dim() + 1)), *words.shape[1:])
    rounds = torch.arange(10, device=words.device).view(10, *(1 for _ in words.shape))
    steps = torch.tensor(_KEY_STEPS, device=words.device).view(2, *(1 for _ in words.shape[1:]))
    return (words + steps * rounds).bitwise_and_(_MASK).unbind()


def gumbel_noise(seed: tuple[Tensor, Tensor], choice: Tensor, position: Tensor, group: Tensor) -> Tensor:
    """Returns the noise of tokens 4 * group to 4 * group + 3 along a new last dimension, in float32.

    `seed` holds the low and the high word. All inputs are int64 and broadcast. The logs are taken in float64
    and rounded once: float32 logs differ between libraries, and in float32 u itself becomes 1 now and then.
    """
    words = philox4x32_10((group, position, choice, torch.zeros_like(choice)), seed)
    uniform = torch.stack(words, dim=-1).to(torch.float64).add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)
