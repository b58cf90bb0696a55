"""`outrider chat` and `outrider generate`."""

import argparse
import json
import sys

from outrider.cli.connection import options_of, read, tls_of
from outrider.cli.parser import UsageError
from outrider.cli.render import Terminal, answer_json, delta_json
from outrider.client import Client, Message, Stream


def chat(arguments: argparse.Namespace) -> None:
    """Answers one message."""
    messages = [Message(role="user", content=arguments.message)]
    if arguments.system is not None:
        messages.insert(0, Message(role="system", content=arguments.system))
    with _client(arguments) as client:
        stream = client.chat(
            messages,
            tools=_tools(arguments),
            thinking=False if arguments.no_thinking else None,
            **options_of(arguments),
        )
        _show(stream, as_json=arguments.json)


def generate(arguments: argparse.Namespace) -> None:
    """Continues a prompt."""
    with _client(arguments) as client:
        _show(client.generate(arguments.prompt, **options_of(arguments)), as_json=arguments.json)


def _client(arguments: argparse.Namespace) -> Client:
    return Client(arguments.target, key=arguments.key, tls=tls_of(arguments))


def _tools(arguments: argparse.Namespace) -> list[dict]:
    if arguments.tools is None:
        return []
    try:
        tools = json.loads(read(arguments.tools))
    except ValueError as error:
        raise UsageError(f"{arguments.tools}: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"{arguments.tools}: must be a list of objects")
    return tools


def _show(stream: Stream, *, as_json: bool) -> None:
    with stream:
        if as_json:
            _print_json(stream)
        else:
            _print_text(stream)


def _print_json(stream: Stream) -> None:
    for delta in stream:
        print(json.dumps({"delta": delta_json(delta)}), flush=True)
    print(json.dumps(answer_json(stream.result())), flush=True)


def _print_text(stream: Stream) -> None:
    terminal = Terminal(sys.stdout)
    try:
        for delta in stream:
            terminal.show(delta)
    except BaseException:
        terminal.break_off()
        raise
    terminal.finish(stream.result())
