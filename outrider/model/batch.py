"""What one forward pass computes and what it gives back."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Span:
    """The rows of one sequence in a batch, and where its KV cache lies."""

    first_row: int
    num_rows: int
    num_context: int  # tokens in the KV cache after this step
    block_ids: list[int] | Tensor  # blocks of tokens 0 .. num_context - 1, in order


@dataclass(frozen=True, kw_only=True)
class Tap:
    """Hidden vectors to give back: of these rows, as they enter these layers.

    Layers rise; the number of all layers stands for what leaves the last one.
    """

    rows: Tensor  # [Q] int64
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """New tokens of any mix of sequences: prompts, decoding, drafts and recomputation alike.

    The rows of a span are the last num_rows of its num_context tokens, in order. All tensors lie on the host.
    """

    token_ids: Tensor  # [T] int64, rows of all sequences one after another
    positions: Tensor  # [T] int64, index of each token in its sequence
    slots: Tensor  # [T] int64, block_id * block_size + offset of each token
    spans: tuple[Span, ...]
    logit_rows: Tensor  # [R] int64
    tap: Tap | None = None


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """A batch as the network takes it: first on the host, where it is laid out, then on the device."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64
    plan: Any  # of the kernels' plan_attention
    logit_rows: Tensor  # [R] int64
    tap: Tap | None
    padding: Tensor | None = None  # [T] bool: rows of no sequence; None: there are none


@dataclass(frozen=True, kw_only=True)
class ForwardResult:
    """Logits of the wanted rows, how many experts each MoE layer woke, and what was tapped."""

    logits: Tensor  # [R, V] fp32
    num_distinct_experts: Tensor | None  # [MoE layers] int64, None without such layers
    # [MoE layers, T, A] int64, the logical experts of each row; E, their number, where it is padding
    experts: Tensor | None = None
    tapped: Tensor | None = None  # [Q, layers of the tap x D]
