"""What is to run on a GPU, run in the interpreter: the sizes mean nothing, the code is the same."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from benchmarks import gpu_check, results
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
    assert all(finding.value > 0 for finding in findings)
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


def test_without_a_gpu_a_part_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    (last,) = gpu_check.run("card", is_tiny=False)
    assert last.is_reached is False
    assert "there is no GPU that torch can use" in capfd.readouterr().err


def test_all_parts_together_end_within_eight_minutes() -> None:
    assert sum(gpu_check.PARTS.values()) < 480


def test_a_finding_is_judged_by_its_limit() -> None:
    slow = Finding.at_most("experts", "time", 61.0, "us", 60)
    fast = Finding.at_least("experts", "part of the copy's rate", 0.7, "", 0.65)
    assert Finding.from_line(slow.line) == slow
    assert [line.split()[-1] for line in table([slow, fast]).splitlines()[1:]] == ["MISS", "PASS"]


def test_what_is_measured_needs_no_grpc() -> None:
    program = "import sys; sys.modules['grpc'] = None; from benchmarks import gpu_check"
    parts = [f"import benchmarks.gpu.{part}" for part in gpu_check.PARTS]
    subprocess.run([sys.executable, "-c", "; ".join([program, *parts])], check=True, cwd=results.ROOT)
