"""What the ranks of a group exchange in a step, on paper, in the form that is used and in two others.

    python -m benchmarks.exchanges [--model kimi-k2.5] [--ranks 8] [--rows 1 8 64]

The outputs of routed experts are what is large: A rows of a token's, the shared block's part beside them.

    gathered    every rank gets the outputs of all, unsummed, and adds them in the token's order: used
    by columns  every rank gets its own columns of all outputs, adds them in the same order, and the sums are
                gathered: the same bits, an R-th of the bytes, a collective more
    summed      every rank adds what it has computed, and the sums are gathered: other bits with every
                placement, so it is not used
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from benchmarks import published
from benchmarks.floor import RATES
from benchmarks.sections import markdown
from outrider.cli.shape import BANDWIDTHS, Shape
from outrider.cli.shard import EXCHANGE_SECONDS, LINKS, Exchange, Shard

NUM_RANKS = 8
NUM_ROWS = (1, 8, 64)


def gathered(exchange: Exchange, shard: Shard) -> Sequence[Exchange]:
    """Returns the collectives of a layer's experts as they are."""
    return [exchange]


def by_columns(exchange: Exchange, shard: Shard) -> Sequence[Exchange]:
    """Returns an all-to-all of columns, then the gathering of their sums."""
    columns = exchange.bytes // shard.num_ranks
    return [
        replace(exchange, bytes=columns),
        replace(exchange, bytes=columns // _rows_per_token(shard)),
    ]


def summed(exchange: Exchange, shard: Shard) -> Sequence[Exchange]:
    """Returns the gathering of each rank's sums."""
    return [replace(exchange, bytes=exchange.bytes // _rows_per_token(shard))]


FORMS = {"gathered": gathered, "by columns": by_columns, "summed": summed}


def exchanges(shard: Shard, num_rows: int, form: str) -> Iterator[Exchange]:
    """Yields the collectives of a step whose experts' outputs travel in a form."""
    for exchange in shard.exchanges(num_rows):
        yield from FORMS[form](exchange, shard) if exchange.what == "experts" else [exchange]


def milliseconds(shard: Shard, num_rows: int, form: str, device: str) -> float:
    """Returns what the collectives of a step take, one after another."""
    found = list(exchanges(shard, num_rows, form))
    num_calls = sum(item.num_calls for item in found)
    return 1e3 * (num_calls * EXCHANGE_SECONDS + received(found, shard) / LINKS[device])


def received(found: Iterable[Exchange], shard: Shard) -> int:
    """Returns the bytes that each rank receives."""
    return (shard.num_ranks - 1) * sum(item.num_calls * item.bytes for item in found)


def first_ahead(model: str, form: str, other: str, device: str) -> int:
    """Returns from how many rows on a form takes less than another."""
    shard = shard_of(model, NUM_RANKS)
    return next(
        num_rows
        for num_rows in count(1)
        if milliseconds(shard, num_rows, form, device) < milliseconds(shard, num_rows, other, device)
    )


def shard_of(model: str, num_ranks: int) -> Shard:
    """Returns a rank's shard of a published model."""
    return Shard(shape=Shape.from_config(published.raw_config(model)), num_ranks=num_ranks)


def form_rows(
    model: str, num_ranks: int = NUM_RANKS, all_rows: Sequence[int] = NUM_ROWS
) -> Iterator[Mapping[str, str]]:
    """Yields a table of whole steps, a row for each number of rows and form."""
    shard = shard_of(model, num_ranks)
    for num_rows in all_rows:
        for form in FORMS:
            found = list(exchanges(shard, num_rows, form))
            yield {
                "rows": str(num_rows),
                "outputs": form,
                "collectives": str(sum(item.num_calls for item in found)),
                "MB received": f"{received(found, shard) / 1e6:,.1f}",
                **{f"ms, {device}": f"{milliseconds(shard, num_rows, form, device):.2f}" for device in RATES},
            }


def layer_rows(model: str, num_ranks: int = NUM_RANKS) -> Iterator[Mapping[str, str]]:
    """Yields a table of the collectives as they are, and the bytes that a rank gives to one, by rows."""
    shard = shard_of(model, num_ranks)
    for of_one, *others in zip(*(shard.exchanges(num_rows) for num_rows in NUM_ROWS), strict=True):
        sizes = [of_one, *others]
        yield {
            "of": of_one.what,
            "a step": str(of_one.num_calls),
            **{
                f"kB, {num_rows} rows": f"{item.bytes / 1e3:,.1f}"
                for num_rows, item in zip(NUM_ROWS, sizes, strict=True)
            },
        }


def rank_rows(model: str, num_ranks: int = NUM_RANKS) -> Iterator[Mapping[str, str]]:
    """Yields a table of what the rank reads that wakes the most experts of a layer."""
    shard = shard_of(model, num_ranks)
    for num_rows in NUM_ROWS:
        steps = {device: shard.step(num_rows, device, BANDWIDTHS[device]) for device in RATES}
        first = next(iter(steps.values()))
        yield {
            "rows": str(num_rows),
            "experts, on average": f"{shard.shape.step(num_rows, 1.0).num_distinct_experts / num_ranks:.1f}",
            "experts, the most": f"{first.num_distinct_experts:.1f}",
            "GB read": f"{first.bytes / 1e9:.1f}",
            **{f"ms, {device}": f"{step.milliseconds:.2f}" for device, step in steps.items()},
        }


def _rows_per_token(shard: Shard) -> int:
    return shard.shape.num_experts_per_token + (1 if shard.shape.shared_hidden else 0)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=published.MODELS, default="kimi-k2.5")
    parser.add_argument("--ranks", type=int, default=NUM_RANKS)
    parser.add_argument("--rows", type=int, nargs="+", default=NUM_ROWS)
    arguments = parser.parse_args()
    print(markdown(list(layer_rows(arguments.model, arguments.ranks))))
    print(markdown(list(form_rows(arguments.model, arguments.ranks, arguments.rows))))
    print(markdown(list(rank_rows(arguments.model, arguments.ranks))))


if __name__ == "__main__":
    main()
