"""How work is cut into programs."""

MOST_TOKENS = 128
"""No program of a product takes more tokens."""


def num_tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)
