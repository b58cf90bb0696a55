"""The launches of an attention: one program for all splits of a tile, or many that share its pieces."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outrider.kernels.triton.attention_plan import AttentionPlan
from outrider.kernels.triton.attention_splits import Partials, combine_splits_launch
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import NUM_PROCESSORS, num_tiles, padded_size

MAX_SCRATCH_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One layer's attention, of any kind: its kernels, what they read, and what they write."""

    walk_kernel: Any  # of triton.jit
    pieces_kernel: Any
    queries: Mapping[str, Tensor]  # by parameter, contiguous
    cache: Tensor
    plan: AttentionPlan
    scale: float
    mixed: Tensor  # [T, H, width]
    num_programs: int  # that share a tile or a piece
    num_parts: int  # of a row's width that programs share
    part_width: int
    constants: Mapping[str, int]
    num_warps: int
    num_warps_of_pieces_on: Mapping[int, int] = field(default_factory=dict)

    @property
    def walks_splits(self) -> bool:
        """Whether a program takes all splits: there are tiles enough, or too many partial results."""
        num_programs = self.plan.num_tiles * self.num_programs
        num_bytes = 4 * self.mixed.numel() * self.plan.num_splits
        return num_programs >= NUM_PROCESSORS or num_bytes > MAX_SCRATCH_BYTES

    def launches(self) -> Iterator[Launch]:
        """What writes `mixed`, in the form that suits the shapes."""
        return self.walked_launches() if self.walks_splits else self.pieced_launches()

    def walked_launches(self) -> Iterator[Launch]:
        """Programs for each tile, which take one split after another."""
        yield Launch(
            kernel=self.walk_kernel,
            grid=(self.num_programs, self.plan.num_tiles),
            arguments={**self._arguments, "mixed_ptr": self.mixed},
            constants=self.constants,
            num_warps=self.num_warps,
        )

    def pieced_launches(self) -> Iterator[Launch]:
        """As many programs as run at a time share all pieces; then splits are combined."""
        partials = Partials.allocate(self.mixed, self.plan, self.num_parts)
        L, num_splits = self.plan.num_tiles, self.plan.num_splits
        yield Launch(
            kernel=self.pieces_kernel,
            grid=(self.num_programs, min(num_tiles(NUM_PROCESSORS, self.num_programs), L * num_splits)),
            arguments={
                **self._arguments,
                "tops_ptr": partials.tops,
                "totals_ptr": partials.totals,
                "partials_ptr": partials.mixed,
                "num_splits": num_splits,
                "L": L,
            },
            constants={**self.constants, "L_PADDED": padded_size(L)},
            num_warps=self.num_warps,
            num_warps_on=self.num_warps_of_pieces_on,
        )
        yield combine_splits_launch(partials, self.plan, self.mixed, self.part_width)

    @property
    def _arguments(self) -> dict[str, Tensor | int | float]:
        return {
            **self.queries,
            "cache_ptr": self.cache,
            "tiles_ptr": self.plan.tiles,
            "tables_ptr": self.plan.block_tables,
            "scale": self.scale * math.log2(math.e),
            "table_width": self.plan.block_tables.shape[1],
        }


def inner_tokens(query: Tensor) -> int:
    """Tokens that a program multiplies at a time."""
    return 64 if query.itemsize == 2 else 32
