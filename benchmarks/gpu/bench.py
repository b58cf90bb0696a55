"""Where a part runs and at which sizes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks import published
from outrider.kernels import load_kernels
from outrider.kernels.interface import Kernels
from outrider.model.config import ModelConfig, MoeConfig

# The sizes of a network that the interpreter computes within seconds; K2.5's features stay as they are.
TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}


def require_gpu() -> None:
    """Ends the process with a line about it where there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit("there is no GPU that torch can use")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A device, kernels, and a model's sizes; `is_tiny` where only the code is to be run."""

    device: torch.device
    dtype: torch.dtype
    precision: torch.dtype  # of the numbers, which may lie in a wider dtype
    kernels: Kernels
    model: ModelConfig
    is_tiny: bool

    @classmethod
    def on_gpu(cls) -> Self:
        """Kimi K2.5 in bf16."""
        return cls(
            device=torch.device("cuda"),
            dtype=torch.bfloat16,
            precision=torch.bfloat16,
            kernels=load_kernels("triton"),
            model=published.read_config("kimi-k2.5"),
            is_tiny=False,
        )

    @classmethod
    def in_interpreter(cls) -> Self:
        """A tiny network on the processor, in fp16: bf16 is not right in the interpreter."""
        return cls(
            device=torch.device("cpu"),
            dtype=torch.float16,
            precision=torch.float16,
            kernels=load_kernels("triton"),
            model=published.read_config("kimi-k2.5", **TINY),
            is_tiny=True,
        )

    @property
    def moe(self) -> MoeConfig:
        """The model's experts."""
        return published.experts(self.model)

    def sizes(self, real: Sequence[int], tiny: Sequence[int]) -> Sequence[int]:
        """Chooses what is measured at."""
        return tiny if self.is_tiny else real

    def normal(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """Returns normal numbers of the bench's precision, in its type or in another."""
        generator = torch.Generator(self.device).manual_seed(seed)
        numbers = torch.randn(*shape, generator=generator, device=self.device, dtype=torch.float32)
        return numbers.to(self.precision).to(dtype or self.dtype)

    def with_model(self, **changes: Any) -> Self:
        """Returns the same with other sizes."""
        return replace(self, model=replace(self.model, **changes))
