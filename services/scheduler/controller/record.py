"""What is learnt of one sequence."""

from dataclasses import dataclass


@dataclass(slots=True)
class Record:
    """The recent past of one sequence; the scheduler keeps it, the controller alone reads and writes it."""

    phase: str = "text"
