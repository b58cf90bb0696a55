"""Calls of a calculator: declared in the conversation, called in Kimi's form, its result read back."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

from training.tasks.arithmetic import addition, multiplication, number, subtraction
from training.tasks.phrasings import phrase
from training.tasks.problem import Call, Problem
from training.tasks.stories import word_problem

NAMES = ("calculator",)
ARGUMENTS = ("expression",)
DESCRIPTIONS = (
    "Evaluates an arithmetic expression.",
    "Evaluate an arithmetic expression.",
    "A calculator.",
    "Computes the value of an expression.",
    "Performs exact arithmetic.",
    "Calculate the result of a mathematical expression.",
    "",
)


def declaration(name: str, argument: str, description: str) -> dict:
    """A tool as the OpenAI API declares it."""
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    function = {"name": name, "parameters": schema}
    if description:
        function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def long_sum(rng: Random) -> Problem:
    """An expression that is too long for the head."""
    a, b, c = (number(rng, max_digits=5, min_digits=2) for _ in range(3))
    forms = (
        f"{a} + {b} + {c}",
        f"{a} + {b} * {c}",
        f"{a} * {b} + {c}",
        f"{a} * {b}",
        f"{a} + {b} - {min(a, c)}",
        f"({a} + {b}) * {c}",
    )
    values = (a + b + c, a + b * c, a * b + c, a * b, a + b - min(a, c), (a + b) * c)
    pick = rng.randrange(len(forms))
    expression = forms[pick] if rng.random() < 0.7 else forms[pick].replace(" ", "")
    return Problem(
        task="calculator",
        key=expression,
        question=phrase(rng, "tools", "ask").format(x=expression),
        thinking="",
        answer="",
        expression=forms[pick],
        value=values[pick],
    )


def calculator(rng: Random) -> Problem:
    """A problem of arithmetic where a calculator is at hand."""
    source = rng.choice((long_sum, long_sum, long_sum, addition, subtraction, multiplication, word_problem))
    problem = source(rng)
    name, argument = rng.choice(NAMES), rng.choice(ARGUMENTS)
    call = Call(
        thinking=f"This is arithmetic and I have a tool, {name}.\n"
        f"The expression is {problem.expression}\nI call {name}.",
        name=name,
        arguments=json.dumps({argument: problem.expression}),
        result=str(problem.value),
    )
    return replace(
        problem,
        task="calculator",
        thinking=f"The tool returned {problem.value}.\nThat is the value of {problem.expression}",
        answer=f"The answer is {problem.value}.",
        tools=[declaration(name, argument, rng.choice(DESCRIPTIONS))],
        calls=(call,),
    )
