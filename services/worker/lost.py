"""Failures after which a process computes nothing more: it ends, and a new one takes its place."""

from outrider.rpc.errors import Internal, Unavailable


class DeviceLost(Unavailable):
    """The GPU is lost: to a scheduler the group is gone, and no sequence is to blame."""


class GroupLost(Unavailable):
    """Another rank has ended or stopped: to a scheduler the group is gone, and no sequence is to blame."""


class StepStuck(Unavailable):
    """A step does not end: what it waits for will not come."""


class LockstepLost(Internal):
    """A step failed on this rank, while the others wait in the midst of it."""


Lost = DeviceLost | GroupLost | StepStuck | LockstepLost
