"""A mean of late."""

from dataclasses import dataclass

# Of late means about the last twenty values.
_SHARE = 0.1


@dataclass(slots=True)
class Recent:
    """A mean that forgets exponentially; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        """Takes in one more value."""
        self.value = value if self.value is None else self.value + _SHARE * (value - self.value)
