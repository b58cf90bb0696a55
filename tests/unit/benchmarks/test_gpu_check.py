"""What is to run on a GPU, run in the interpreter: the sizes mean nothing, the code is the same."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest
import torch

from benchmarks import gpu_check, results, tile_search
from benchmarks.gpu import ranks
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.finding import Finding, table
from tests.interpreter_bf16 import repair


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        repair(patch)
        yield Bench.in_interpreter()


@pytest.mark.parametrize("part", ["correctness", "bits"])
def test_kernels_reach_what_does_not_depend_on_time(bench: Bench, part: str) -> None:
    findings = list(import_module(f"benchmarks.gpu.{part}").measure(bench))
    assert len(findings) > 8
    assert [finding.name for finding in findings if not finding.is_reached] == []


@pytest.mark.parametrize("part", ["experts", "attention", "sampling", "model_slice"])
def test_a_part_measures_what_it_has_targets_for(bench: Bench, part: str) -> None:
    findings = list(import_module(f"benchmarks.gpu.{part}").measure(bench))
    assert all(finding.value > 0 and finding.part == part for finding in findings)
    assert part == "model_slice" or any(finding.target for finding in findings)


def test_a_part_runs_in_a_process_of_its_own() -> None:
    *findings, last = gpu_check.run("card", is_tiny=True)
    assert [finding.unit for finding in findings] == ["TB/s", "TFLOP/s"]
    assert (last.name, last.is_reached) == ("finished", True)


def test_a_part_that_does_not_end_is_stopped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", {"experts": 0})
    (last,) = gpu_check.run("experts", is_tiny=True)
    assert last.name == "ended with status -9"
    assert last.is_reached is False


@pytest.mark.parametrize("program", [gpu_check, tile_search])
def test_without_a_gpu_a_program_ends_with_a_line_about_it(
    monkeypatch: pytest.MonkeyPatch, program: ModuleType
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["program"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == "there is no GPU that torch can use"


def test_all_parts_for_one_gpu_together_end_within_eight_minutes() -> None:
    assert sum(seconds for part, seconds in gpu_check.PARTS.items() if part != "ranks") < 480


def test_two_ranks_have_equal_bits_with_buckets_and_without(bench: Bench) -> None:
    findings = list(ranks.of_group(2, is_tiny=True))
    judged = [finding for finding in findings if finding.target]
    assert [finding.name for finding in judged if not finding.is_reached] == []
    assert len(judged) == 3
    assert any(finding.name == "2 ranks: 2 rows: step of 2 layers" for finding in findings)


def test_ranks_are_left_out_where_there_is_one_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (found,) = ranks.measure(replace(bench, is_tiny=False))
    assert found.name.startswith("left out")


@pytest.mark.parametrize("line", ["a warning", '{"part": "ca', '{"part": "card"}', "5", ""])
def test_a_line_that_is_no_finding_loses_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    found = Finding(part="card", name="copy", value=3.0, unit="TB/s")
    program = f"print({line!r}); print({found.line!r})"
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **options: popen([sys.executable, "-c", program], **options)
    )
    first, last = gpu_check.run("card", is_tiny=True)
    assert first == found
    assert last.name == "finished"
    assert f"not a finding: {line}" in capfd.readouterr().out


def test_a_part_that_is_run_again_replaces_its_own_findings_alone() -> None:
    def found(part: str, name: str, value: float) -> Finding:
        return Finding(part=part, name=name, value=value, unit="us")

    before = [found("experts", "1 token", 1.0), found("bits", "old", 0.0), found("card", "copy", 4.0)]
    rows = gpu_check.merged([finding.as_row() for finding in before], [found("bits", "new", 2.0)])
    assert rows == [before[2].as_row(), found("bits", "new", 2.0).as_row(), before[0].as_row()]


def test_a_finding_is_judged_by_its_limit() -> None:
    slow = Finding.at_most("experts", "time", 61.0, "us", 60)
    fast = Finding.at_least("experts", "part of the copy's rate", 0.7, "", 0.65)
    assert Finding.from_line(slow.line) == slow
    assert [line.split()[-1] for line in table([slow, fast]).splitlines()[1:]] == ["MISS", "PASS"]


def test_what_is_measured_needs_no_grpc() -> None:
    program = "import sys; sys.modules['grpc'] = None; from benchmarks import gpu_check"
    parts = [f"import benchmarks.gpu.{part}" for part in gpu_check.PARTS]
    subprocess.run([sys.executable, "-c", "; ".join([program, *parts])], check=True, cwd=results.ROOT)
