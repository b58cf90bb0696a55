"""What a task hands out: a question, the steps that solve it and the one answer that counts as right."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Call:
    """One use of a tool: what the model thinks, what it sends, what comes back."""

    thinking: str
    name: str
    arguments: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question with its worked solution.

    `key` names the problem whatever the phrasing, so that no phrasing of a held-out problem is trained on.
    `expression` is what a calculator would be asked, where the problem is one of arithmetic.
    """

    task: str
    key: str
    question: str
    thinking: str
    answer: str
    expression: str | None = None
    value: int | None = None
    tools: list[dict] = field(default_factory=list)
    calls: tuple[Call, ...] = ()

    @property
    def is_held_out(self) -> bool:
        """One problem in sixteen is never trained on."""
        return zlib.crc32(f"{self.task} {self.key}".encode()) % 16 == 0

    def check(self, answer: str) -> bool:
        """Answers are canonical, so that checking is equality."""
        return answer.strip() == self.answer
