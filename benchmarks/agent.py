"""An agent's conversations: sums that it hands to a calculator, and edits of files, with a growing history.

The sums are the tiny model's own tasks, problems that training never saw; it thinks, calls and answers as it
likes. The edits are recorded (`benchmarks/edits.py`): their text is forced.
"""

import ast
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from benchmarks.answers import Ask
from benchmarks.edits import Edit, forced, recorded
from outrider.client import Answer, Message, Options, Tool, ToolCall
from training.tasks import Problem, draw
from training.tasks.tools import calculator, declaration

SYSTEM = "You are a helpful assistant."
TOOL = Tool.from_mapping(declaration("calculator", "expression", "Evaluates an arithmetic expression."))
# Per conversation. The sums come first: behind a file's text the tiny model forgets to use its tool.
NUM_SUMS, NUM_EDITS = 3, 2
MAX_NUM_CALLS = 2
MAX_NUM_TOKENS = 400
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@dataclass(frozen=True, kw_only=True)
class Session:
    """What one conversation asks, in turn: problems and edits."""

    turns: tuple[Problem | Edit, ...]


def sessions(count: int, *, seed: int = 3) -> list[Session]:
    """Draws conversations of three sums and two edits each; no edit comes twice."""
    rng = Random(seed)
    edits = rng.sample(recorded(), NUM_EDITS * count)
    return [Session(turns=(*_sums(rng), *edits[NUM_EDITS * n : NUM_EDITS * (n + 1)])) for n in range(count)]


def _sums(rng: Random) -> list[Problem]:
    return [draw(rng, held_out=True, task=calculator) for _ in range(NUM_SUMS)]


@dataclass(slots=True)
class Conversation:
    """One session being played; `ask` is how its questions reach a gateway."""

    ask: Ask
    messages: list[Message] = field(default_factory=lambda: [Message(role="system", content=SYSTEM)])

    async def play(self, session: Session) -> list[Answer]:
        """Plays all turns and returns the answers."""
        answers: list[Answer] = []
        for turn in session.turns:
            answers += [await self._edit(turn)] if isinstance(turn, Edit) else await self._solve(turn)
        return answers

    async def _edit(self, edit: Edit) -> Answer:
        self.messages.append(Message(role="user", content=edit.request))
        return await self._answer(thinking=False, **forced(edit.after))

    async def _solve(self, problem: Problem) -> list[Answer]:
        """Lets the model call its tool until it answers."""
        self.messages.append(Message(role="user", content=problem.question))
        options: Options = {"temperature": 0.0, "max_tokens": MAX_NUM_TOKENS}
        answers = [await self._answer(thinking=True, **options)]
        while answers[-1].tool_calls and len(answers) <= MAX_NUM_CALLS:
            self.messages += [_result(call) for call in answers[-1].tool_calls]
            answers.append(await self._answer(thinking=True, **options))
        return answers

    async def _answer(self, *, thinking: bool, **options: object) -> Answer:
        answer = await self.ask(self.messages, tools=[TOOL], thinking=thinking, **options)
        self.messages.append(
            Message(
                role="assistant",
                content=answer.text,
                reasoning=answer.reasoning,
                tool_calls=answer.tool_calls,
            )
        )
        return answer


def _result(call: ToolCall) -> Message:
    return Message(role="tool", tool_call_id=call.id, content=calculate(call.arguments))


def calculate(arguments: str) -> str:
    """Returns what the calculator says to a call's arguments."""
    try:
        return str(_value(ast.parse(json.loads(arguments)["expression"], mode="eval").body))
    except (ValueError, KeyError, TypeError, SyntaxError):
        return "error"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("not a sum")
