"""Starts the local stack, asks it two questions as a client would, shows the answers, and stops it."""

import sys

from outrider import AsyncClient
from outrider.cli.render import Terminal
from services.local.command import report, run
from services.local.settings import DEFAULT_MODEL, Settings, default_sources
from services.local.stack import Stack

# Alike in form, so that the drafter can guess the second answer's course from the first's.
QUESTIONS = ("What is 17 + 25?", "What is 48 + 36?")


async def ask(client: AsyncClient, question: str) -> None:
    """Shows a question and its answer as it grows."""
    sys.stdout.write(f"\n> {question}\n")
    terminal = Terminal(sys.stdout)
    async with client.chat(question, temperature=0, max_tokens=256) as stream:
        async for delta in stream:
            terminal.show(delta)
        terminal.finish(await stream.result())


async def demonstrate() -> None:
    """Runs the demonstration."""
    settings = Settings(drafter=default_sources(DEFAULT_MODEL), grpc_port=0, http_port=0)
    async with Stack(settings, report=report) as stack:
        await stack.wait_until_ready()
        async with AsyncClient(stack.grpc_address) as client:
            for question in QUESTIONS:
                await ask(client, question)


if __name__ == "__main__":
    sys.exit(run(demonstrate()))
