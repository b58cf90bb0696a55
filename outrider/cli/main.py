"""Reads the command line, does what it says, and turns errors into one line and a status."""

import os
import sys
from collections.abc import Sequence

from outrider.cli.parser import UsageError, build_parser
from outrider.rpc.errors import OutriderError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for an error of the request, 2 for a wrong command line."""
    parsed = build_parser().parse_args(arguments)
    try:
        parsed.run(parsed)
    except UsageError as error:
        return _fail(str(error), 2)
    except OutriderError as error:
        return _fail(describe(error), 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read us has had enough; the interpreter must not try to flush again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def describe(error: OutriderError) -> str:
    """Returns code, field, message and when to try again, on one line."""
    # The message in which a request keeps its options says nothing to who types them.
    field = f"field {error.field.removeprefix('options.')}" if error.field else ""
    parts = [error.code.name, field, " ".join(error.message.split())]
    retry = f" (try again in {error.retry_delay.total_seconds():g} s)" if error.retry_delay else ""
    return ": ".join(filter(None, parts)) + retry


def _fail(line: str, status: int) -> int:
    print(f"outrider: {line}", file=sys.stderr)
    return status
