"""What a backend must offer; a backend is a module, and the network calls nothing else.

The rule that every kernel keeps: the bits of an output row depend on the weights, that row's inputs and its
own context alone, never on how many rows are computed together or where in the batch the row stands.

Dimension key: outrider/model/__init__.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from outrider.kernels.weights import StoredWeight
from outrider.model.batch import Span

Packed: TypeAlias = Any
"""Weights or a plan in a backend's own form: what its pack_ and plan_ functions return, opaque to callers."""


@dataclass(frozen=True, kw_only=True)
class Angles:
    """Cosines and sines of the rows of one step, fp32, the amplitude applied."""

    cos: Tensor  # [T, P / 2]
    sin: Tensor  # [T, P / 2]
    interleaved: bool  # pairs are neighbours (0, 1), else halves (0, P / 2)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The experts of each token in falling order of score; ties go to the lower expert."""

    experts: Tensor  # [T, A] int64
    weights: Tensor  # [T, A] fp32


@dataclass(frozen=True, kw_only=True)
class GateRule:
    """How scores become a choice: groups first (num_kept of num_groups), then experts."""

    num_experts_per_token: int
    num_groups: int
    num_kept_groups: int
    normalize_weights: bool
    scaling: float


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The heads of a layer: every cached key head serves num_queries_per_key query heads."""

    num_queries_per_key: int
    num_key_heads: int
    key_width: int
    value_width: int


@dataclass(frozen=True, kw_only=True)
class LatentNorm:
    """How latents are normalised before they are cached."""

    weight: Tensor  # [C] fp32
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the tokens of a step go in the cache of one layer, and how they are turned."""

    cache: Tensor  # [slots, C + P]
    slots: Tensor  # [T] int64
    angles: Angles


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """How the token of each row is chosen, and what it is compared with: sequences one after another.

    The columns of `parameters`: temperature (0: the best score, without noise or filters), top-k (0 keeps
    all), top-p (1 keeps all), log of min-p (minus infinity keeps all), seed (low and high word), choice, and
    the position that the token will have. All are below 2^53, so float64 keeps them.
    """

    parameters: Tensor  # [R, 8] fp64
    drafts: Tensor  # [R] int64, -1 where no token was guessed: at the last row of each sequence
    firsts: Tensor  # [B + 1] int64: where each sequence begins, then R; those without rows stand last
    any_top_k: bool  # does any row that is sampled filter so: known to the host, and part of what is launched
    any_top_p: bool


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The model's own tokens, and how far the drafts agree with them."""

    tokens: Tensor  # [R] int64, -1 where no token is allowed or the logits are not finite
    finite: Tensor  # [R] bool
    num_accepted: Tensor  # [B] int64: leading drafts that are the model's own tokens
    bonus: Tensor  # [B] int64: the token behind them; -1 where there is none


class Kernels(Protocol):
    """One backend."""

    NAME: str
    VERSION: int
    LIBRARIES: str
    """The libraries that compute, with their versions: part of the numerics id."""
    CAPTURABLE: bool
    """Whether shapes alone decide what a step launches, so that a CUDA graph of it serves other steps.

    Nothing then reads back from the device, and the shapes of a plan's tensors depend only on the number of
    spans, on the number of rows and on the longest block_ids.
    """

    def pack_linear(self, weight: StoredWeight) -> Packed:
        """Take a weight [N, K]."""
        ...

    def linear(self, x: Tensor, weight: Packed) -> Tensor:
        """[T, K] -> [T, N]."""
        ...

    def pack_head_linear(self, weight: Tensor) -> Packed:
        """Take one weight [K, N] for each head: [H, K, N]."""
        ...

    def head_linear(self, x: Tensor, weight: Packed) -> Tensor:
        """[T, H, K] -> [T, H, N], each head by its own weight."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) * weight (fp32) over the last dimension, in fp32, rounded once."""
        ...

    def add_rms_norm(
        self, x: Tensor, addend: Tensor, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """The sum x + addend, rounded to their type, and the sum normalised."""
        ...

    def rotate(self, x: Tensor, angles: Angles) -> Tensor:
        """Turn the pairs of x [T, H, P]; the result holds first members, then second ones."""
        ...

    def silu_product(self, gate_up: Tensor) -> Tensor:
        """silu(left half) * right half: [T, 2 F] -> [T, F]."""
        ...

    def plan_attention(
        self, spans: Sequence[Span], positions: Tensor, block_size: int, shape: AttentionShape
    ) -> Packed:
        """Lay out the attention of a step once for all layers.

        This is done on the host: positions and the tensors of the plan, a dataclass, lie there, and the
        caller copies them all to the device at once. A span may have no rows, and more block_ids than its
        context fills.
        """
        ...

    def write_latent(self, row: Tensor, query: Tensor, norm: LatentNorm, place: Place) -> Tensor:
        """Normalise the latents of rows [T, C + P], turn their keys, and write both into the cache.

        Returns the queries [T, H, P] turned by the same angles. Of NaN and infinities finite values are
        written: attention hides what it must not see by exact zeros.
        """
        ...

    def latent_attention(
        self, latent: Tensor, turned: Tensor, cache: Tensor, plan: Packed, scale: float
    ) -> Tensor:
        """Absorbed MLA: queries [T, H, C] and [T, H, P] over cache rows [slots, C + P] -> [T, H, C]."""
        ...

    def grouped_attention(self, query: Tensor, cache: Tensor, plan: Packed, scale: float) -> Tensor:
        """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
        ...

    def gate(self, logits: Tensor, bias: Tensor, rule: GateRule) -> Choice:
        """Choose experts by sigmoid(logits) + bias, weigh them by sigmoid(logits): logits [T, E] fp32."""
        ...

    def pack_experts(
        self, gate_up: Sequence[StoredWeight], down: Sequence[StoredWeight], *, num_slots: int | None = None
    ) -> Packed:
        """Take each expert's weights [2 F, D] and [D, F], all of them stored in one form.

        `num_slots` says how many experts tokens choose among, on all ranks; None: these.
        """
        ...

    def replace_expert(self, weights: Packed, slot: int, gate_up: StoredWeight, down: StoredWeight) -> None:
        """Put another expert's weights in the place of a packed one's; graphs that were captured go on."""
        ...

    def experts(self, x: Tensor, choice: Choice, weights: Packed) -> Tensor:
        """The chosen experts' outputs, unweighted and unsummed: [T, D] -> [T, A, D].

        A choice may be E, the number of packed experts: none is woken then, and anything comes out. Such are
        padding and what other ranks compute. There may be no other choice at all.
        """
        ...

    def combine(self, outputs: Tensor, choice: Choice, shared: Tensor | None) -> Tensor:
        """Weigh [T, A, D] and add in the token's own order in fp32, the shared expert last: -> [T, D]."""
        ...

    def add_parts(self, parts: Tensor) -> Tensor:
        """Add the ranks' parts of a layer in rank order in fp32, rounded once: [R, T, D] -> [T, D]."""
        ...

    def sample_and_verify(self, logits: Tensor, scores: Tensor, rows: SamplingRows) -> Verified:
        """Choose the token of each row of scores [R, V] fp32 and compare it with the row's draft.

        scores / temperature go through top-k, top-p and min-p, in that order, which keep what ties with the
        last one kept; the token is the lowest with the highest float32 sum of score and noise, and the noise
        of token v is -log(-log(u)), both logs in float64 and rounded once, of u = (x + 0.5) / 2^32 with x =
        Philox4x32-10(key = seed, counter = (v div 4, position, choice, 0))[v mod 4].

        `logits` are those that the scores were made of, the same tensor if nothing was changed: a row is
        finite if all of them are. Both are left as they are.
        """
        ...
