"""`outrider models` and `outrider stats`."""

import argparse
import json

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from outrider.cli.connection import tls_of
from outrider.client import Client


def models(arguments: argparse.Namespace) -> None:
    """Lists the models."""
    with Client(arguments.target, key=arguments.key, tls=tls_of(arguments)) as client:
        found = client.models(arguments.timeout)
    if arguments.json:
        print(json.dumps({"models": [_plain(model) for model in found]}))
        return
    for model in found:
        print(f"{model.name}  up to {model.max_model_len} tokens  numerics {model.numerics_id}")


def stats(arguments: argparse.Namespace) -> None:
    """Shows the load of each scheduler."""
    with Client(arguments.target, key=arguments.key, tls=tls_of(arguments)) as client:
        found = client.stats(arguments.timeout)
    if arguments.json:
        print(json.dumps({"schedulers": [_plain(scheduler) for scheduler in found]}))
        return
    for scheduler in found:
        state = "connected" if scheduler.connected else "not connected"
        print(f"{scheduler.address}  {scheduler.model}  {state}  numerics {scheduler.numerics_id}")
        for name, value in _plain(scheduler.load).items():
            print(f"  {name:<26}{value:g}" if isinstance(value, float) else f"  {name:<26}{value}")


def _plain(message: Message) -> dict:
    plain = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _with_numbers(plain)


def _with_numbers(value: dict) -> dict:
    """Undoes that protobuf's JSON writes 64-bit numbers as strings."""
    return {
        name: _with_numbers(item)
        if isinstance(item, dict)
        else int(item)
        if name.startswith("num_") and isinstance(item, str)
        else item
        for name, item in value.items()
    }
