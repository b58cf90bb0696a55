"""Results are kept with what made them, and the report is made of nothing else."""

import json
from pathlib import Path

from benchmarks import plots, results
from benchmarks.sections import read
from benchmarks.speculation_report import STUDIES, report

NEVER_COSTS = [
    {
        "kind": kind,
        "num_streams": 4,
        "num_pairs": 10,
        "median": ratio,
        "low": ratio - 0.02,
        "high": ratio + 0.02,
        "half_width": 0.02,
        "is_wide": False,
        "fails": ratio < 0.95,
        "with_drafts": 100.0 * ratio,
        "without": 100.0,
        "tokens_per_event": 1.5,
    }
    for kind, ratio in (("unpredictable", 0.9), ("predictable", 1.5))
]


def test_what_is_saved_is_read_back_with_its_command_and_machine(tmp_path: Path) -> None:
    results.save("some", [{"a": 1}], tmp_path)
    found = results.load("some", tmp_path)
    assert found is not None
    assert found.rows == [{"a": 1}]
    assert found.command.startswith("python -m")
    assert "cores" in found.machine
    assert results.load("other", tmp_path) is None


def test_rows_that_a_benchmark_prints_are_kept(tmp_path: Path) -> None:
    arguments = ["--num-tokens", "2", "--batch-sizes", "1", "2"]
    results.capture("physics", "benchmarks.physics", arguments, tmp_path)
    found = results.load("physics", tmp_path)
    assert found is not None
    assert [row["batch_size"] for row in found.rows] == [1, 2]
    assert found.command == "python -m benchmarks.physics --num-tokens 2 --batch-sizes 1 2"


def test_a_report_without_results_says_so_in_every_section(tmp_path: Path) -> None:
    _, sections = read()
    assert report(tmp_path, tmp_path / "report.md").count("Not measured yet.") == len(sections)


def test_a_report_names_the_cells_that_fail_and_shows_its_plot(tmp_path: Path) -> None:
    results.save("never_costs", NEVER_COSTS, tmp_path)
    text = report(tmp_path, tmp_path / "report.md")
    assert "Cells that fail: unpredictable at 4." in text
    assert "predictable at 4 streams, 1.50 times" in text
    assert "](plots/never_costs.svg)" in text
    assert (tmp_path / "plots" / "never_costs.svg").read_text().startswith("<?xml")


def test_equal_rows_make_equal_plots(tmp_path: Path) -> None:
    first = plots.draw("never_costs", NEVER_COSTS, tmp_path).read_bytes()
    assert plots.draw("never_costs", json.loads(json.dumps(NEVER_COSTS)), tmp_path).read_bytes() == first


def test_every_section_has_a_study_that_makes_its_result() -> None:
    _, sections = read()
    assert {section.name for section in sections} <= STUDIES.keys()
