"""How work is cut into programs."""


def num_tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)
