"""How the C library treats freed memory."""

import ctypes

# From malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Keeps what a step frees for the next one, where the C library can.

    By default glibc gives large blocks back to the kernel, and every step pays to have their pages cleared.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
