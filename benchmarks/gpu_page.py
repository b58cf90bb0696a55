"""Writes docs/gpu.md: what is known of the kernels without a GPU, and what was measured on one.

python -m benchmarks.gpu_page
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import exchanges, floor, launches, published, results
from benchmarks.aot_report import RESULT
from benchmarks.sections import markdown
from outrider.cli.shard import EXCHANGE_SECONDS, LINKS

PATH = results.ROOT / "docs" / "gpu.md"
ROWS_BY_KERNEL = 8
TITLES = {"kimi-k2.5": "Kimi K2.5, int4 experts", "deepseek-v3": "DeepSeek-V3, FP8"}

HEAD = """# GPUs

`make bench` writes this page (`python -m benchmarks.gpu_page`).

## Measured

{measured}

## Compiled

`python -m benchmarks.aot_report` compiles every launch of the two models below, whole and one of eight
ranks, for steps of 2 to 96 rows and a chunk of 2,048, without a GPU or a driver. It ends non-zero on a
spill, on more shared memory than a block may have (232,448 bytes), on more than the 512 columns of tensor
memory, and on a product without the chip's own instructions (HGMMA or QGMMA on sm_90, UTCHMMA or UTCQMMA on
sm_100).
`docs/results/aot.json` holds every row; a test compares with it. In the table: the most of any launch, and
the products found.

{compiled}

## On paper

Bytes and operations follow from shapes (`benchmarks/floor.py`). Every row of a step is of a sequence of its
own, has {context:,} tokens in the cache, and picks experts for itself, so that the number of distinct
experts is E (1 - (1 - A/E)^n). The floor of a kernel is the longer of moving its bytes and multiplying its
numbers at the data sheet's rates: 4.8 and 8 TB/s; 989 and 2,250 TFLOP/s in bf16, 1,979 and 4,500 in FP8
(NVIDIA's data sheets of H200 and DGX B200, dense). int4 is multiplied in bf16. Eight devices share weights,
heads and activations; each reads the whole latent cache; what they exchange is not counted. A step cannot
be faster than the sum of its kernels' floors; it is slower by what launches and tails take.

{models}
## Groups of ranks

A group of {num_ranks} ranks, one on each GPU, exchanges by all-gather alone: each rank's part of the sum
after attention and after a dense block, added in rank order by `add_parts`; after the routed experts their
unsummed outputs, with the part of the shared block behind them; at the end the logits of its part of the
vocabulary. In a CUDA graph shapes cannot depend on data, so that a rank sends rows for all pairs, whoever
computes them. What a rank of {title} gives to each collective (`benchmarks/exchanges.py`):

{layers}

The outputs of experts could travel in other forms. The times are {latency:.0f} us for each collective,
which is an assumption, and the bytes received at {links} (data sheets of H200 and B200, one direction):

{forms}

`gathered` is what is there. `by columns` is an all-to-all of columns, each rank's own then added in the
token's order and gathered: the same bits, and by these figures faster from {crossing} rows on H200. An
output is computed on one rank alone, so that a reduce-scatter of outputs among zeros would be as exact in
any order, but for the sign of a zero. `summed` adds what each rank has computed and gathers the sums: its
bits change with the placement, so it is not used. A step of few rows is bound by how long a small
collective takes: that, and what a kernel of our own over peers' memory would take, are the first things to
measure.

Each layer waits for the rank that wakes the most experts, if every row picks for itself (`outrider plan`):

{ranks}

A rank launches {num_launches:,} times in a step of {num_rows} rows, one alone {num_alone:,} times; the
difference: {launches}. Of torch's operations {num_torch_per_layer:.0f} more a layer find the slots of
chosen experts and put their outputs back to their tokens: a kernel for the slots, and a `combine` that
reads gathered rows by number, would spare most of them.

`python -m benchmarks.gpu_check --part ranks` is for two GPUs or more: bits of gathered parts, of graphs
with collectives and of all ranks, and the time of collectives and steps at 1, 2, 4 and 8 ranks. It has run
with Gloo on CPUs only. NCCL's guide, "Using NCCL with CUDA Graphs", says what must be kept: all ranks
record and launch the same graphs in the same order, the communicator is there before, and it outlives its
graphs.
"""

MODEL = """
### {title}

{steps}

A step of {num_rows} rows by kernel:

{kernels}

It makes {num_launches:,} launches, counted by running the network's code on tensors without memory
(`benchmarks/launches.py`): {launches}. Each microsecond between two of them would add {added:.2f} ms.
"""

NOT_MEASURED = """\
No GPU was to be had, so no figure on this page was measured on one. `python -m benchmarks.gpu_check` checks
every kernel against torch and measures it, in under eight minutes, with this repository and its
extras `model` and `gpu`; it writes `docs/results/gpu_<card>.json`, of which this section is then made."""


def main() -> None:
    """Writes the page."""
    page = HEAD.format(
        measured="\n\n".join(measured()) or NOT_MEASURED,
        compiled=compiled(),
        context=floor.CONTEXT,
        models="".join(on_paper(model) for model in published.MODELS),
        **of_ranks("kimi-k2.5"),
    )
    PATH.write_text(page)


def of_ranks(model: str) -> Mapping[str, Any]:
    """Returns what the page says of a group of ranks."""
    num_ranks = exchanges.NUM_RANKS
    alone, counts = (launches.count(model, ROWS_BY_KERNEL, number) for number in (1, num_ranks))
    more = {name: number - alone.get(name, 0) for name, number in counts.items()}
    config = published.read_config(model)
    return {
        "num_ranks": num_ranks,
        "title": TITLES[model].partition(",")[0],
        "layers": markdown(list(exchanges.layer_rows(model))),
        "latency": 1e6 * EXCHANGE_SECONDS,
        "links": " and ".join(f"{LINKS[device] / 1e9:.0f} GB/s" for device in floor.RATES),
        "forms": markdown(list(exchanges.form_rows(model))),
        "crossing": exchanges.first_ahead(model, "by columns", "gathered", "H200"),
        "ranks": markdown(list(exchanges.rank_rows(model))),
        "num_rows": ROWS_BY_KERNEL,
        "num_launches": sum(counts.values()),
        "num_alone": sum(alone.values()),
        "launches": ", ".join(f"{name} {n:+d}" for name, n in more.items() if n),
        "num_torch_per_layer": more[launches.TORCH] / (config.num_layers - config.num_dense_layers),
    }


def measured() -> Iterator[str]:
    """Yields a table for each card."""
    for path in sorted(results.DIRECTORY.glob("gpu_*.json")):
        result = results.load(path.stem, results.DIRECTORY)
        assert result is not None
        rows = [
            {**row, "verdict": {True: "reached", False: "missed"}.get(row["is_reached"], "")}
            for row in result.rows
        ]
        columns = {
            "part": "part",
            "name": "what",
            "value": "value",
            "unit": "unit",
            "target": "target",
            "verdict": "",
        }
        yield f"{result.machine}, {result.day}:\n\n{markdown(rows, columns)}"


def compiled() -> str:
    """Returns the report's rows, one for each kernel, type of weight and architecture."""
    result = results.load(RESULT, results.DIRECTORY)
    if result is None:
        return "Nothing is recorded."
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for row in result.rows:
        groups.setdefault((row["kernel"], row["dtype"], row["arch"]), []).append(row)
    return markdown([_summary(*key, rows) for key, rows in sorted(groups.items())])


def _summary(kernel: str, dtype: str, arch: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = sorted({name for row in rows for name in row["instructions"] if "MMA" in name})
    return {
        "kernel": kernel,
        "weights": dtype,
        "arch": f"sm_{arch}",
        "launches": len(rows),
        "registers": max(row["registers"] for row in rows),
        "spills": max(row["spills"] for row in rows),
        "shared bytes": max(row["shared_bytes"] for row in rows),
        "products": " ".join(found),
    }


def on_paper(model: str) -> str:
    """Returns a model's tables."""
    counts = launches.count(model, ROWS_BY_KERNEL)
    num_launches = sum(counts.values())
    return MODEL.format(
        title=TITLES[model],
        steps=markdown(list(floor.step_rows(model))),
        num_rows=ROWS_BY_KERNEL,
        kernels=markdown(list(floor.kernel_rows(model, ROWS_BY_KERNEL))),
        num_launches=num_launches,
        launches=", ".join(f"{kernel} {number}" for kernel, number in counts.items()),
        added=num_launches / 1e3,
    )


if __name__ == "__main__":
    main()
