"""From command-line options to clients and their options."""

import argparse
from pathlib import Path

from outrider.cli.parser import UsageError
from outrider.client import ClientTls, Options

_SAMPLING = (
    "model", "timeout", "max_tokens", "min_tokens", "max_reasoning_tokens", "temperature",
    "top_k", "top_p", "min_p", "seed", "stop",
)  # fmt: skip


def tls_of(arguments: argparse.Namespace) -> ClientTls | None:
    """Returns how to encrypt, or None; raises UsageError for files that cannot be used."""
    ca, certificate, key = arguments.tls_ca, arguments.tls_certificate, arguments.tls_key
    if (certificate is None) != (key is None):
        raise UsageError("--tls-certificate and --tls-key go together")
    if not (arguments.tls or ca or certificate):
        return None
    for path in filter(None, (ca, certificate, key)):
        read(path)
    return ClientTls(ca=ca, certificate=certificate, key=key)


def options_of(arguments: argparse.Namespace) -> Options:
    """Returns the options that are set."""
    options = Options()
    for name in _SAMPLING:
        value = getattr(arguments, name)
        if value is not None:
            options[name] = value
    if arguments.json_schema is not None:
        options["json_schema"] = read(arguments.json_schema)
    if arguments.no_speculation:
        options["speculation"] = False
    return options


def read(path: Path) -> str:
    """Reads a text file; raises UsageError naming it."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
