"""Whether a prompt leaves the model thinking."""

import pytest

from services.gateway.output.marks import marks_of
from services.gateway.output.reasoning import opens_thinking


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi<think>", True),
        ("hi<think> \n", True),
        ("hi<think></think>", False),
        ("<think>a</think>hi", False),
        ("<think>so", False),
        ("<think><|im_end|>", False),
        (" ", False),
    ],
)
def test_the_prompts_tail_decides(tokenizer, prompt, expected):
    assert opens_thinking(tokenizer.encode(prompt), tokenizer, marks_of(tokenizer)) == expected
