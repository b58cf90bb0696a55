"""The whole way from output tokens to pieces."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from services.gateway.output.detokenizer import Detokenizer
from services.gateway.output.marks import THINKING_MARKS, Mark
from services.gateway.output.piece import Piece, join
from services.gateway.output.stop import StopMatcher
from services.gateway.output.tool_calls import ToolCallParser
from services.gateway.tokenizer import Tokenizer


class Phase(Enum):
    """What is being written."""

    THINKING = auto()
    ANSWER = auto()
    TOOL_CALLS = auto()


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """How a request's output is to be read. Without marks all of it is text."""

    tokenizer: Tokenizer
    marks: Mapping[int, Mark]
    thinking: bool
    stop_strings: Sequence[str]
    stop_token_ids: Collection[int]
    tool_schemas: Mapping[str, Mapping]
    num_earlier_calls: int = 0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """What in the output ended it."""

    stop_string: str | None = None
    stop_token_id: int | None = None


class OutputParser:
    """Takes token after token; pieces come out in the order of their tokens, without gaps.

    Which pieces there are depends on the tokens alone, not on when they are taken. So an answer
    resumes by pushing the tokens already sent: pieces that end among the first `num_sent` stay away.
    """

    def __init__(self, output_format: OutputFormat, *, num_sent: int = 0) -> None:
        self._format = output_format
        self._num_sent = num_sent
        self._detokenizer = Detokenizer(output_format.tokenizer)
        self._matcher = StopMatcher(output_format.stop_strings)
        self._tools = ToolCallParser(
            output_format.tool_schemas, num_earlier_calls=output_format.num_earlier_calls
        )
        self._phase = Phase.THINKING if output_format.thinking else Phase.ANSWER
        self._pieces: list[Piece] = []
        self._anomalies: list[str] = []
        self.stop: Stop | None = None
        self.num_tokens = 0
        self.num_completed = 0
        self.num_reasoning_tokens = 0
        self.num_answer_tokens = 0

    @property
    def num_tool_calls(self) -> int:
        """Returns how many tool calls were begun."""
        return self._tools.num_calls

    @property
    def anomalies(self) -> list[str]:
        """Returns what was not as the format wants it, by kind."""
        return self._anomalies + self._tools.anomalies

    def push(self, token_id: int) -> None:
        """Takes the next output token. Once `stop` is set there must be none."""
        assert self.stop is None
        self.num_tokens += 1
        mark = self._format.marks.get(token_id)
        if token_id in self._format.stop_token_ids:
            self._flush()
            self._emit([Piece(num_tokens=1)])
            self.stop = self.stop or Stop(stop_token_id=token_id)
        elif mark is None or (mark in THINKING_MARKS and self._phase is Phase.TOOL_CALLS):
            self._count()
            self._place(self._detokenizer.push(token_id))
        else:
            self._take_mark(mark)

    def finish(self) -> None:
        """Gives out all that is held back: no token will follow."""
        if self.stop is None:
            self._flush()

    def take(self) -> Piece:
        """Returns what has come out since the last call."""
        pieces, self._pieces = self._pieces, []
        return join(pieces)

    def _count(self) -> None:
        if self._phase is Phase.THINKING:
            self.num_reasoning_tokens += 1
        else:
            self.num_answer_tokens += 1

    def _place(self, piece: Piece | None) -> None:
        if piece is None:
            return
        if self._phase is Phase.THINKING:
            self._emit([Piece(num_tokens=piece.num_tokens, reasoning=piece.text)])
        elif self._phase is Phase.TOOL_CALLS:
            self._emit([self._tools.text(piece)])
        else:
            self._emit(self._matcher.push(piece))
            if self._matcher.found is not None:
                self.stop = Stop(stop_string=self._matcher.found)

    def _take_mark(self, mark: Mark) -> None:
        self._place(self._detokenizer.flush())
        self._emit(self._matcher.flush())
        if self.stop is not None:
            self._emit([Piece(num_tokens=1)])
        elif mark in THINKING_MARKS:
            self._take_thinking_mark(mark)
        else:
            self._take_tool_mark(mark)

    def _take_thinking_mark(self, mark: Mark) -> None:
        begins, thinks = mark is Mark.THINK_BEGIN, self._phase is Phase.THINKING
        if begins == thinks:
            self._anomalies.append("misplaced_thinking_mark")
        self._phase = Phase.THINKING if begins else Phase.ANSWER
        self._emit([Piece(num_tokens=1)])

    def _take_tool_mark(self, mark: Mark) -> None:
        """A section begun in the thinking closes it; a call begun outside a section opens one."""
        if self._phase is Phase.THINKING:
            self._anomalies.append("tool_calls_in_thinking")
        begun = self._phase is not Phase.TOOL_CALLS and mark in (Mark.SECTION_BEGIN, Mark.CALL_BEGIN)
        if begun:
            self._phase = Phase.TOOL_CALLS
        self._count()
        if self._phase is not Phase.TOOL_CALLS or (begun and mark is Mark.SECTION_BEGIN):
            self._emit([Piece(num_tokens=1)])
            if not begun:
                self._anomalies.append("mark_outside_section")
            return
        if begun:
            self._anomalies.append("call_outside_section")
        self._emit([self._tools.mark(mark)])
        if mark is Mark.SECTION_END:
            self._phase = Phase.ANSWER

    def _flush(self) -> None:
        self._place(self._detokenizer.flush())
        self._emit(self._matcher.flush())
        if self._phase is Phase.TOOL_CALLS:
            self._emit([self._tools.close()])
            self._anomalies.append("unfinished_section")

    def _emit(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self.num_completed += piece.num_tokens
            if self.num_completed > self._num_sent and piece.num_tokens:
                self._pieces.append(piece)
