"""Which rank holds which routed experts: the Placement, and how it is improved from measured loads."""

from outrider.model.placement.balance import Loads, imbalance
from outrider.model.placement.placement import Move, Placement

__all__ = ["Loads", "Move", "Placement", "imbalance"]
