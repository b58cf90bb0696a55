"""The plots of the report on speculation, one function per figure, as SVG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH, HEIGHT = 7.2, 3.6
Rows = Sequence[Mapping[str, Any]]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(name: str, rows: Rows, directory: Path) -> Path:
    """Draws the plot of a result and returns its path; equal rows make equal files."""
    matplotlib.rcParams.update({"svg.hashsalt": name, "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    PLOTS[name](figure, rows)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    return path


def _never_costs(figure: Figure, rows: Rows) -> None:
    """Draws each cell's median ratio with its interval."""
    axes = figure.subplots()
    for number, (kind, cells) in enumerate(_by(rows, "kind").items()):
        places = [place + 0.12 * (number - 1) for place in range(len(cells))]
        medians = [cell["median"] for cell in cells]
        errors = [
            [cell["median"] - cell["low"] for cell in cells],
            [cell["high"] - cell["median"] for cell in cells],
        ]
        axes.errorbar(places, medians, errors, fmt="o", capsize=3, color=COLOURS[number], label=kind)
    counts = sorted({row["num_streams"] for row in rows})
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.axhline(0.97, color="black", linewidth=0.8, linestyle="--", label="0.97")
    axes.set(xlabel="streams", ylabel="tokens/s, with drafts by without", yscale="log")
    _plain(axes, [1, 1.5, 2, 3, 5, 8])
    axes.legend()


def _learns(figure: Figure, rows: Rows) -> None:
    """Draws rate and accepted tokens of every pass."""
    axes = figure.subplots()
    names = [row["pass"] for row in rows]
    axes.bar(names, [row["tokens_per_second"] for row in rows], 0.5, color=COLOURS[0])
    axes.set(ylabel="tokens/s")
    beside = axes.twinx()
    beside.plot(names, [row["accepted_per_step"] for row in rows], "D", color=COLOURS[1])
    beside.set(ylabel="accepted tokens per step (diamonds)", ylim=(0, 8.5))
    beside.grid(visible=False)


def _regret(figure: Figure, rows: Rows) -> None:
    """Draws tokens/s of every fixed length by those of the controller, a panel per number of streams."""
    panels = _by(rows, "num_streams")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (count, cells) in zip(all_axes, panels.items(), strict=True):
        for number, row in enumerate(cells):
            relative = [fixed / row["tokens_per_second"] for fixed in row["fixed_tokens_per_second"]]
            axes.plot(range(len(relative)), relative, ".-", color=COLOURS[number], label=row["kind"])
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(title=f"{count} streams", xlabel="fixed length")
    all_axes[0].set(ylabel="tokens/s by the controller's")
    all_axes[0].legend(fontsize=6)


def _caps(figure: Figure, rows: Rows) -> None:
    """Draws how the controller alone compares with the controller under each cap."""
    axes = figure.subplots()
    capped = [row for row in rows if row["cap"] != "none"]
    ratios = [row["uncapped_to_capped"] for row in capped]
    errors = [[r["median"] - r["low"] for r in ratios], [r["high"] - r["median"] for r in ratios]]
    axes.errorbar(range(len(capped)), [r["median"] for r in ratios], errors, fmt="o", capsize=3)
    axes.set_xticks(range(len(capped)), [row["cap"] for row in capped])
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="cap on the draft length", ylabel="tokens/s, without a cap by with")


def _recorded_acceptance(figure: Figure, rows: Rows) -> None:
    """Draws the part accepted at each place, a panel per kind of text."""
    panels = _by(rows, "kind")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (kind, found) in zip(all_axes, panels.items(), strict=True):
        for number, row in enumerate(found):
            axes.plot(*_places(row), ".-", color=COLOURS[number], label=row["source"])
        axes.set(title=kind, xlabel="place in the draft", ylim=(0, 1.02))
    all_axes[0].set(ylabel="accepted, if those before were")
    all_axes[0].legend(fontsize=7)


def _places(row: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    values = [value for value in row["per_position"] if value is not None]
    return list(range(1, len(values) + 1)), values


def _acceptance(figure: Figure, rows: Rows) -> None:
    """Draws the fraction accepted at each place, by source and temperature."""
    axes = figure.subplots()
    styles = {0.0: "-", 0.8: "--", 1.5: ":"}
    chosen = [row for row in rows if row.get("noise", "same") == "same" and row.get("num_seqs", 1) == 1]
    sources = list(_by(chosen, "source"))
    for row in chosen:
        axes.plot(
            *_places(row),
            styles.get(row["temperature"], "-"),
            marker=".",
            color=COLOURS[sources.index(row["source"])],
            label=f"{row['source']}, temperature {row['temperature']:g}",
        )
    axes.set(xlabel="place in the draft", ylabel="accepted, if those before were", ylim=(0, 1.02))
    axes.legend(fontsize=7)


def _physics(figure: Figure, rows: Rows) -> None:
    """Draws the chosen draft length against the batch size, and the gain."""
    axes = figure.subplots()
    sizes = [row["batch_size"] for row in rows]
    axes.plot(sizes, [row["draft_length"] for row in rows], "o-", color=COLOURS[0])
    axes.set(xscale="log", xlabel="batch size", ylabel="draft length chosen (circles)")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    beside = axes.twinx()
    beside.plot(sizes, [row["gain_over_none"] for row in rows], "D--", color=COLOURS[1])
    beside.set(ylabel="tokens/s by none drafted (diamonds)")
    beside.grid(visible=False)


def _eviction(figure: Figure, rows: Rows) -> None:
    """Draws hit rates less those of least recently used, on the agents' conversations."""
    axes = figure.subplots()
    baseline = "least recently used"
    chosen = [row for row in rows if row["workload"].startswith("agents")]
    policies = [name for name in chosen[0] if name not in ("workload", "num_blocks", baseline)]
    for number, policy in enumerate(policies):
        gains = [100 * (row[policy] - row[baseline]) for row in chosen]
        axes.plot(range(len(chosen)), gains, ".-", color=COLOURS[number], label=policy)
    labels = [f"{row['workload']}\n{row['num_blocks']}" for row in chosen]
    axes.set_xticks(range(len(chosen)), labels, rotation=70, fontsize=6)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(ylabel="points of hit rate over\nleast recently used")
    axes.legend(fontsize=7)


PLOTS: Mapping[str, Callable[[Figure, Rows], None]] = {
    "never_costs": _never_costs,
    "never_costs_suffix": _never_costs,
    "regret": _regret,
    "caps": _caps,
    "learns": _learns,
    "recorded_acceptance": _recorded_acceptance,
    "acceptance": _acceptance,
    "physics": _physics,
    "eviction": _eviction,
}


def _by(rows: Rows, key: str) -> dict[Any, list[Mapping[str, Any]]]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _plain(axes: Axes, ticks: Sequence[float]) -> None:
    """Writes the ticks of a logarithmic axis as plain numbers."""
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
