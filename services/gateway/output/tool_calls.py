"""Kimi's tool calls, inside their section: begin, id, argument begin, JSON, end; and again."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.gateway.output.marks import Mark
from services.gateway.output.piece import Piece, ToolCallPiece, join

_ID = re.compile(r"(?:(?P<name>.*):)?(?P<index>[0-9]{1,9})", re.DOTALL)


@dataclass(slots=True)
class _Call:
    """The call being written."""

    num_held: int = 0
    header: str = ""
    arguments: str = ""
    has_arguments: bool = False
    # Whether its id and name have been given out. Until then its tokens are held back.
    named: bool = False


class ToolCallParser:
    """Turns the marks and texts of a section into pieces. `schemas` are the tools' argument schemas by name.

    Call ids come out as functions.{name}:{index}; a call without an index takes the number of calls
    before it, counted from `num_earlier_calls`, those of the conversation.
    """

    def __init__(self, schemas: Mapping[str, Any], *, num_earlier_calls: int = 0) -> None:
        self._schemas = schemas
        self._num_earlier_calls = num_earlier_calls
        self._call: _Call | None = None
        self.num_calls = 0
        self.anomalies: list[str] = []

    def mark(self, mark: Mark) -> Piece:
        """Takes a mark of a section, in whatever order they come."""
        token = Piece(num_tokens=1)
        if mark is Mark.ARGUMENT_BEGIN and self._call is not None and not self._call.has_arguments:
            return self._begin_arguments(self._call)
        if mark is Mark.CALL_END and self._call is not None:
            if not self._call.has_arguments:
                self.anomalies.append("call_without_arguments")
            return join([self._end_call(self._call), token])
        if mark in (Mark.CALL_BEGIN, Mark.SECTION_END):
            closed = self.close()
            self._call = _Call() if mark is Mark.CALL_BEGIN else None
            return join([closed, token])
        self.anomalies.append("misplaced_mark")
        return token if self._call is None or self._call.named else self._hold(self._call, token)

    def text(self, piece: Piece) -> Piece:
        """Takes text between marks. Outside calls it belongs to the answer, unless it is white space."""
        if self._call is None:
            if not piece.text.strip():
                return Piece(num_tokens=piece.num_tokens)
            self.anomalies.append("text_between_calls")
            return piece
        if self._call.named:
            call = ToolCallPiece(index=self.num_calls - 1, arguments=piece.text)
            return Piece(num_tokens=piece.num_tokens, tool_calls=(call,))
        if self._call.has_arguments:
            self._call.arguments += piece.text
        else:
            self._call.header += piece.text
        return self._hold(self._call, piece)

    def close(self) -> Piece:
        """Ends the call being written, if one is: its end is missing."""
        if self._call is None:
            return Piece(num_tokens=0)
        self.anomalies.append("unfinished_call")
        if self._call.has_arguments:
            return self._end_call(self._call)
        num_held, self._call = self._call.num_held, None
        return Piece(num_tokens=num_held)

    def _hold(self, call: _Call, piece: Piece) -> Piece:
        call.num_held += piece.num_tokens
        return Piece(num_tokens=0)

    def _begin_arguments(self, call: _Call) -> Piece:
        call.has_arguments = True
        name, index = self._read_id(call.header)
        if name is None:
            return self._hold(call, Piece(num_tokens=1))
        return self._give_name(call, name, index, num_tokens=call.num_held + 1)

    def _end_call(self, call: _Call) -> Piece:
        self._call = None
        if call.named:
            return Piece(num_tokens=0)
        name, index = self._read_id(call.header)
        if name is None:
            self.anomalies.append("call_without_name")
            name = self._name_by_arguments(call.arguments) or call.header.strip()
        return self._give_name(call, name, index, num_tokens=call.num_held)

    def _give_name(self, call: _Call, name: str, index: int | None, *, num_tokens: int) -> Piece:
        index = self._num_earlier_calls + self.num_calls if index is None else index
        begun = ToolCallPiece(
            index=self.num_calls, id=f"functions.{name}:{index}", name=name, arguments=call.arguments
        )
        call.named = True
        self.num_calls += 1
        return Piece(num_tokens=num_tokens, tool_calls=(begun,))

    def _read_id(self, header: str) -> tuple[str | None, int | None]:
        """Returns the name and index that an id holds; names may hold colons, and ids may be bare numbers."""
        text = header.strip().removeprefix("functions.")
        if text in self._schemas:
            return text, None
        match = _ID.fullmatch(text)
        if match is None:
            return text or None, None
        return match["name"] or self._only_name(), int(match["index"])

    def _only_name(self) -> str | None:
        return next(iter(self._schemas)) if len(self._schemas) == 1 else None

    def _name_by_arguments(self, arguments: str) -> str | None:
        """Returns the tool whose schema has all the arguments and requires no others, if just one does."""
        try:
            keys = set(json.loads(arguments))
        except (ValueError, TypeError, RecursionError):
            return None
        fitting = [
            name
            for name, schema in self._schemas.items()
            if set(schema.get("required", ())) <= keys <= set(schema.get("properties", ()))
        ]
        return fitting[0] if len(fitting) == 1 else None
