"""Turns problems into conversations, and those into token ids of which the model's own part is learnt."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer

from training.chat import Message, render
from training.tasks import Problem, draw
from training.tasks.tools import declaration

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful model.",
    "Answer the question.",
    "Think in steps, then answer.",
    "You are a calculator.",
    "You are Kimi, an AI assistant created by Moonshot AI.",
    "Be brief.",
    "You are a careful assistant. Answer in one line.",
)
# Of all documents: with a system turn, with earlier turns, without thinking, without chat, with an idle tool.
SHARE_SYSTEM, SHARE_HISTORY, SHARE_DIRECT, SHARE_PLAIN, SHARE_IDLE_TOOL = 0.12, 0.16, 0.03, 0.04, 0.02


@dataclass(frozen=True)
class Document:
    """Token ids; those from `num_prompt_tokens` on are learnt."""

    token_ids: list[int]
    num_prompt_tokens: int


def user(problem: Problem) -> Message:
    """The question as a turn."""
    return {"role": "user", "content": problem.question}


def assistant(problem: Problem) -> Message:
    """The finished answer as a turn; the template forgets its thoughts."""
    return {"role": "assistant", "content": problem.answer}


def call_id(problem: Problem, index: int) -> str:
    """Kimi's form of the id of a problem's call."""
    return f"functions.{problem.calls[index].name}:{index}"


def call_turns(problem: Problem, num_calls: int) -> list[Message]:
    """The first calls of a problem with their results, as turns of a loop that still runs."""
    turns: list[Message] = []
    for i, call in enumerate(problem.calls[:num_calls]):
        function = {"name": call.name, "arguments": call.arguments}
        calls = [{"id": call_id(problem, i), "type": "function", "function": function}]
        turns.append(
            {"role": "assistant", "content": "", "reasoning_content": call.thinking, "tool_calls": calls}
        )
        turns.append({"role": "tool", "tool_call_id": call_id(problem, i), "content": call.result})
    return turns


def completion(problem: Problem, num_calls: int) -> str:
    """What the model writes after the prompt: the next call, or the answer once all calls are made."""
    if num_calls == len(problem.calls):
        return f"{problem.thinking}</think>{problem.answer}<|im_end|>"
    call = problem.calls[num_calls]
    head = f"<|tool_call_begin|>{call_id(problem, num_calls)}"
    body = f"{head}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
    return f"{call.thinking}</think><|tool_calls_section_begin|>{body}<|tool_calls_section_end|><|im_end|>"


def history(rng: Random, num_turns: int) -> list[Message]:
    """Earlier questions with their answers."""
    turns: list[Message] = []
    for _ in range(num_turns):
        problem = draw(rng, held_out=False)
        turns += [user(problem), *call_turns(problem, len(problem.calls)), assistant(problem)]
    return turns


def encode(tokenizer: Tokenizer, prompt: str, learnt: str) -> Document:
    """Encodes the two parts apart, as serving does."""
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    return Document(prompt_ids + tokenizer.encode(learnt, add_special_tokens=False).ids, len(prompt_ids))


def plain(problem: Problem) -> tuple[str, str]:
    """A problem without any chat: the question, the steps, the answer."""
    return problem.question, f"\n{problem.thinking}\n{problem.answer}[EOS]"


def chat(rng: Random, problem: Problem, num_turns: int) -> tuple[str, str]:
    """A problem at the end of a conversation of so many earlier turns."""
    system = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < SHARE_SYSTEM else []
    num_calls = rng.randint(0, len(problem.calls))
    messages = [*system, *history(rng, num_turns), user(problem), *call_turns(problem, num_calls)]
    if not problem.calls and rng.random() < SHARE_DIRECT:
        return render(messages, thinking=False), f"{problem.answer}<|im_end|>"
    tools = problem.tools
    if problem.expression is None and rng.random() < SHARE_IDLE_TOOL:
        tools = [declaration("calculator", "expression", "Evaluates an arithmetic expression.")]
    return render(messages, tools=tools), completion(problem, num_calls)


def document(rng: Random, tokenizer: Tokenizer, *, max_num_turns: int = 3) -> Document:
    """One training document; most are a single question."""
    problem = draw(rng, held_out=False)
    if not problem.calls and rng.random() < SHARE_PLAIN:
        return encode(tokenizer, *plain(problem))
    num_turns = rng.randint(1, max_num_turns) if rng.random() < SHARE_HISTORY or max_num_turns > 3 else 0
    return encode(tokenizer, *chat(rng, problem, num_turns))
