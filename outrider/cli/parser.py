"""The command line: commands, options and what they mean."""

import argparse
import os
from pathlib import Path

from outrider.client.channel import DEFAULT_TARGET


class UsageError(Exception):
    """The command line asks for something that cannot be; the message is one line."""


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command; `run` of what it returns does the work."""
    # Imported here: the commands need UsageError.
    from outrider.cli import ask, bench, plan, status

    parser = argparse.ArgumentParser(prog="outrider", description="Asks an outrider gateway.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    chat = _command(commands, "chat", ask.chat, "answer one message")
    chat.add_argument("message", metavar="MESSAGE")
    chat.add_argument("--system", metavar="TEXT", help="instructions that precede the message")
    chat.add_argument("--no-thinking", action="store_true", help="answer without thinking first")
    chat.add_argument(
        "--tools", type=Path, metavar="FILE.json", help="a list of tools, as OpenAI's API has it"
    )
    _add_connection(chat)
    _add_sampling(chat)

    generate = _command(commands, "generate", ask.generate, "continue a text")
    generate.add_argument("--prompt", required=True, metavar="TEXT")
    _add_connection(generate)
    _add_sampling(generate)

    _add_connection(_command(commands, "models", status.models, "list the models"))
    _add_connection(_command(commands, "stats", status.stats, "show the load of the schedulers"))

    measure = _command(commands, "bench", bench.run, "put load on a gateway and measure it")
    measure.add_argument("--prompt", default="What is 17 + 25?", metavar="TEXT", help="the user's message")
    measure.add_argument("--prompts", type=Path, metavar="FILE", help="one message a line, taken in turn")
    measure.add_argument("--concurrency", type=positive, default=1, metavar="N", help="requests in flight")
    measure.add_argument("--num-requests", type=positive, default=10, metavar="N")
    _add_connection(measure)
    _add_sampling(measure)

    plan_ = _command(commands, "plan", plan.run, "work out what a model will take, from its config.json")
    plan_.add_argument("config", type=Path, metavar="CONFIG.json")
    plan_.add_argument(
        "--device", default="B200", choices=sorted(plan.BANDWIDTHS), help="default: %(default)s"
    )
    plan_.add_argument("--num-devices", type=positive, default=8, metavar="N", help="default: %(default)s")
    plan_.add_argument(
        "--num-redundant-experts", type=not_negative, default=0, metavar="N", help="copies in each layer"
    )
    return parser


def _command(
    commands: argparse._SubParsersAction, name: str, run: object, what: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    return parser


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("connection")
    target = os.environ.get("OUTRIDER_TARGET", DEFAULT_TARGET)
    group.add_argument("--target", default=target, metavar="HOST:PORT[,...]", help="default: %(default)s")
    group.add_argument("--key", default=os.environ.get("OUTRIDER_KEY"), help="default: $OUTRIDER_KEY")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="until the answer must be complete")
    group.add_argument("--tls", action="store_true", help="encrypt; trust the public authorities")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="encrypt; trust this authority")
    group.add_argument("--tls-certificate", type=Path, metavar="FILE", help="show this certificate")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--model", metavar="NAME")
    group.add_argument("--max-tokens", type=int, metavar="N")
    group.add_argument("--min-tokens", type=int, metavar="N")
    group.add_argument(
        "--max-reasoning-tokens", type=int, metavar="N", help="close the thinking after N tokens"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 picks the most likely token")
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--min-p", type=float, metavar="P")
    group.add_argument("--seed", type=int, metavar="S", help="same question, same seed: same tokens")
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends the output; may be repeated")
    group.add_argument("--json-schema", type=Path, metavar="FILE", help="what the output must conform to")
    group.add_argument(
        "--no-speculation", action="store_true", help="guess no tokens ahead: same text, slower"
    )


def positive(text: str) -> int:
    """Parses a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, is {number}")
    return number


def not_negative(text: str) -> int:
    """Parses a whole number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, is {number}")
    return number
