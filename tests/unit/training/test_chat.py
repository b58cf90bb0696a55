"""The shipped chat template follows Kimi's format."""

from __future__ import annotations

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.chat import MODEL_DIR, render

USER = {"role": "user", "content": "What is 1 + 1?"}
ANSWER = {"role": "assistant", "content": "1 + 1 = 2", "reasoning_content": "easy"}
CALL = {
    "id": "functions.calculator:0",
    "function": {"name": "calculator", "arguments": '{"expression": "1 + 1"}'},
}
CALLING = {"role": "assistant", "content": "", "reasoning_content": "a tool", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "functions.calculator:0", "content": "2"}


def test_a_question_ends_where_the_thinking_begins() -> None:
    expected = (
        "<|im_user|>user<|im_middle|>What is 1 + 1?<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert render([USER]) == expected
    assert render([USER], thinking=False) == expected + "</think>"


def test_thoughts_of_finished_turns_are_forgotten() -> None:
    assert "<think></think>1 + 1 = 2<|im_end|>" in render([USER, ANSWER, USER])


def test_thoughts_of_a_running_tool_loop_are_kept() -> None:
    text = render([USER, ANSWER, USER, CALLING, RESULT])
    assert (
        "<think>a tool</think><|tool_calls_section_begin|><|tool_call_begin|>functions.calculator:0"
        '<|tool_call_argument_begin|>{"expression": "1 + 1"}<|tool_call_end|><|tool_calls_section_end|>'
        "<|im_end|><|im_system|>tool<|im_middle|>## Return of functions.calculator:0\n2<|im_end|>"
    ) in text


def test_tools_are_declared_before_everything_else() -> None:
    text = render([{"role": "system", "content": "Be brief."}, USER], tools=[{"type": "function"}])
    declared = '<|im_system|>tool_declare<|im_middle|>[{"type": "function"}]<|im_end|>'
    assert text.startswith(f"{declared}<|im_system|>system<|im_middle|>Be brief.<|im_end|>")


@pytest.mark.parametrize(
    "content", ["text", [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}]]
)
def test_the_template_runs_in_a_plain_sandbox(content: object) -> None:
    template = ImmutableSandboxedEnvironment().from_string((MODEL_DIR / "chat_template.jinja").read_text())
    messages = [{"role": "user", "name": "ann", "content": content}]
    assert template.render(messages=messages) == "<|im_user|>ann<|im_middle|>text<|im_end|>"
