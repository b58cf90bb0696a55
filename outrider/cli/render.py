"""How answers look: to people, and as JSON."""

from dataclasses import asdict
from typing import Any, TextIO

from outrider.client import Answer, Delta

_DIM, _PLAIN = "\033[2m", "\033[0m"
_KEYS = (
    "text", "reasoning", "tool_calls", "token_ids", "finish_reason", "seed", "usage", "stats", "numerics_id",
)  # fmt: skip


def delta_json(delta: Delta) -> dict[str, Any]:
    """Returns what is new, without what is empty."""
    return {name: value for name, value in asdict(delta).items() if value}


def answer_json(answer: Answer) -> dict[str, Any]:
    """Returns the whole answer."""
    everything = asdict(answer)
    return {name: everything[name] for name in _KEYS}


def statistics_line(answer: Answer) -> str:
    """Returns what the answer took, for people."""
    usage, stats = answer.usage, answer.stats
    parts = [
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"first after {stats.ttft_ms:.0f} ms",
        f"{stats.tokens_per_second:.0f} tokens/s",
        f"{stats.num_steps} steps",
        f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted",
        f"seed {answer.seed}",
    ]
    return f"[{answer.finish_reason}: {', '.join(parts)}]"


class Terminal:
    """Writes an answer as it grows: the thinking dimmed, then the answer, then the statistics."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._color = out.isatty()
        self._thinking = False
        self._any = False

    def show(self, delta: Delta) -> None:
        """Writes what is new."""
        if delta.reasoning:
            self._switch(thinking=True)
            self._write(delta.reasoning)
        if delta.text:
            self._switch(thinking=False)
            self._write(delta.text)
        for call in delta.tool_calls:
            self._switch(thinking=False)
            self._write((f"\n{call.name} " if call.name else "") + call.arguments)
        self._out.flush()

    def finish(self, answer: Answer) -> None:
        """Writes the statistics."""
        self._switch(thinking=False)
        self._write("\n" + self._dimmed(statistics_line(answer)) + "\n")
        self._out.flush()

    def break_off(self) -> None:
        """Ends the line of an answer that will not be finished."""
        if self._any:
            self._write((_PLAIN if self._color else "") + "\n")
            self._out.flush()

    def _switch(self, *, thinking: bool) -> None:
        if thinking == self._thinking:
            return
        self._thinking = thinking
        if self._color:
            self._write(_DIM if thinking else _PLAIN)
        if not thinking:
            self._write("\n\n")

    def _dimmed(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self._color else text

    def _write(self, text: str) -> None:
        self._any = True
        self._out.write(text)
