"""What the controller is told: of the model, of a step, of a draft."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_native.controller import PHASES, SOURCES

__all__ = ["PHASES", "SOURCES", "ModelFacts", "Offer", "Settings", "StepShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The experts of a model; zeros for a dense one."""

    num_experts: int = 0
    num_experts_per_token: int = 0
    num_moe_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What bounds the controller's choices."""

    max_num_draft_tokens: int
    # Whether the drafter computes on the cores that the group computes on: then its time is the step's.
    drafter_shares_cores: bool = False
    # The time between two tokens of a stream that prompts may stretch a step to. None: no limit.
    inter_token_target_seconds: float | None = None
    max_wait_seconds: float = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What a step's time depends on."""

    num_rows: int  # tokens computed, drafts included
    num_sequences: int
    num_context_tokens: int  # summed over sequences: tokens attended to
    # Sequences for which it chooses tokens: not those that have more of a prompt to come. 0: all.
    num_choosing: int = 0

    @property
    def num_base_tokens(self) -> int:
        """The tokens that it yields without drafts."""
        return self.num_choosing or max(1, self.num_sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One draft as it is offered for one sequence."""

    source: str  # of SOURCES
    confidences: Sequence[float]  # one per token: the chance that it is right if those before it are
    match_length: int
    phase: str  # of PHASES
