"""Whether a prompt leaves the model thinking."""

from collections.abc import Mapping, Sequence

from services.gateway.output.marks import Mark
from services.gateway.tokenizer import Tokenizer


def opens_thinking(prompt: Sequence[int], tokenizer: Tokenizer, marks: Mapping[int, Mark]) -> bool:
    """Returns whether the prompt's last token is `<think>`, white space aside.

    The rendered prompt decides, not the option that asked for thinking: templates treat that as they like.
    """
    for token_id in reversed(prompt):
        if token_id in marks:
            return marks[token_id] is Mark.THINK_BEGIN
        text = tokenizer.token_bytes(token_id)
        if not text or text.strip():
            return False
    return False
