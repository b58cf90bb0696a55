"""Which rank holds which routed experts: the Placement, and how it is improved from measured loads."""

from outrider.model.placement.placement import Move, Placement

__all__ = ["Move", "Placement"]
