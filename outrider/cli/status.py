"""`outrider models` and `outrider stats`."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from outrider.cli.connection import tls_of
from outrider.client import Client
from outrider.v1 import gateway_pb2 as pb


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
    """Shows the load of each scheduler, in a column of its own."""
    with Client(arguments.target, key=arguments.key, tls=tls_of(arguments)) as client:
        found = client.stats(arguments.timeout)
    if arguments.json:
        print(json.dumps({"schedulers": [_plain(scheduler) for scheduler in found]}))
        return
    for line in table([_figures(scheduler) for scheduler in found]):
        print(line)


def _figures(scheduler: pb.SchedulerStats) -> dict[str, str]:
    """Returns what there is to show of a pair, by name."""
    figures = {"scheduler": scheduler.address, "state": _state(scheduler)}
    plain = _plain(scheduler)
    names = ("model", "numerics_id", "num_requests", "num_known_blocks")
    values = {name: plain[name] for name in names}
    values |= {field.name: plain["load"][field.name] for field in scheduler.load.DESCRIPTOR.fields}
    return figures | {
        name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()
    }


def _state(scheduler: pb.SchedulerStats) -> str:
    if not scheduler.connected:
        return "not connected"
    if not scheduler.load.has_group:
        return "no group"
    return "serving" if scheduler.takes_requests else "shutting down"


def table(columns: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields a line for each name, with a column for each mapping; all have the same names."""
    if not columns:
        return
    names = list(columns[0])
    for row in zip(names, *([column[name] for name in names] for column in columns), strict=True):
        widths = [max(map(len, names)), *(max(map(len, column.values())) for column in columns)]
        yield "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()


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
