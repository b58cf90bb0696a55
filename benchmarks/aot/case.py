"""A launch to be compiled, and the settings in which it would be made."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import published
from benchmarks.aot.compiled import launch_key
from benchmarks.aot.recording import launches_of
from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels
from outrider.kernels.triton.launch import Launch
from outrider.kernels.weights import FP8_BLOCK, INT4_GROUP, Fp8Weight, Int4Weight, StoredWeight
from outrider.model.config import ModelConfig

FEW_TOKENS, MANY_TOKENS = 8, 2048
"""Tokens of a decoding step, and of a chunk of a prompt."""
OTHER_TOKENS = (2, 32, 64, 96)
"""With these tokens of a step every tile is compiled that a table of them holds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel's launch; `shape` says of which model and share of it, and of how many tokens."""

    kernel: str
    dtype: str  # of the weights: bf16, fp8 or int4
    shape: Mapping[str, int | str]
    launch: Launch
    is_product: bool  # must the chip's own tensor cores multiply


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One rank's share of a model, and the tokens of a step."""

    name: str
    config: ModelConfig
    num_ranks: int
    num_tokens: int

    @property
    def kernels(self) -> Kernels:
        """The kernels that are compiled."""
        return load_kernels("triton")

    @property
    def num_heads(self) -> int:
        """Query heads of this rank."""
        return published.latent(self.config).num_heads // self.num_ranks

    @property
    def num_experts(self) -> int:
        """Routed experts of this rank."""
        return published.experts(self.config).num_experts // self.num_ranks

    def cases(
        self,
        names: Mapping[str, str],
        compute: Callable[[], Any],
        *,
        dtype: str = "bf16",
        products: tuple[str, ...] = (),
        **sizes: int,
    ) -> Iterator[Case]:
        """Yields what a call launches; `names` are those of kernels that the report names otherwise."""
        where = {"model": self.name, "num_ranks": self.num_ranks, "num_tokens": self.num_tokens}
        # A call may launch a kernel several times: once is enough where that compiles to the same.
        different = {launch_key(launch): launch for launch in launches_of(compute)}
        counts: Counter[str] = Counter()
        for launch in different.values():
            kernel = launch.kernel.__name__
            name = names.get(kernel, kernel.removesuffix("_kernel"))
            counts[name] += 1
            form = {"form": counts[name]} if counts[name] > 1 else {}
            yield Case(
                kernel=name,
                dtype=dtype,
                shape={**where, **sizes, **form},
                launch=launch,
                is_product=name in products,
            )


def settings() -> Iterator[Setting]:
    """Yields both models, whole and an eighth of them, with few tokens, many, and numbers between them."""
    for name in published.MODELS:
        config = published.read_config(name)
        for num_ranks in (1, 8):
            for num_tokens in (FEW_TOKENS, MANY_TOKENS, *OTHER_TOKENS):
                yield Setting(name=name, config=config, num_ranks=num_ranks, num_tokens=num_tokens)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Returns a tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def stored(dtype: str, N: int, K: int) -> StoredWeight:
    """Returns a weight [N, K] without memory."""
    if dtype == "int4":
        packed, scales = meta(N, K // 8, dtype=torch.int32), meta(N, K // INT4_GROUP)
        return Int4Weight(packed=packed, scales=scales, dtype=torch.bfloat16)
    if dtype == "fp8":
        blocks = -(-N // FP8_BLOCK), -(-K // FP8_BLOCK)
        values = meta(N, K, dtype=torch.float8_e4m3fn)
        return Fp8Weight(values=values, scales=meta(*blocks, dtype=torch.float32), dtype=torch.bfloat16)
    return meta(N, K)
