"""What parsing makes of a few tokens: the parts that deltas are put together from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call; id and name are in the first one only."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The text that the next `num_tokens` tokens complete."""

    num_tokens: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()


def join(pieces: Iterable[Piece]) -> Piece:
    """Puts pieces together; pieces of one tool call become one."""
    pieces = list(pieces)
    return Piece(
        num_tokens=sum(piece.num_tokens for piece in pieces),
        text="".join(piece.text for piece in pieces),
        reasoning="".join(piece.reasoning for piece in pieces),
        tool_calls=_join_calls(call for piece in pieces for call in piece.tool_calls),
    )


def _join_calls(calls: Iterable[ToolCallPiece]) -> tuple[ToolCallPiece, ...]:
    joined: list[ToolCallPiece] = []
    for call in calls:
        if joined and joined[-1].index == call.index:
            joined[-1] = replace(joined[-1], arguments=joined[-1].arguments + call.arguments)
        else:
            joined.append(call)
    return tuple(joined)
