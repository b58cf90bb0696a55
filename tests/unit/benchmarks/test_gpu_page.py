from pathlib import Path

import pytest

from benchmarks import gpu_page, results
from benchmarks.gpu.finding import Finding


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "DIRECTORY", tmp_path)
    return tmp_path


def test_a_card_that_was_measured_has_a_table_with_its_name(directory: Path) -> None:
    findings = [
        Finding.at_most("experts", "5 tokens by 1", 1.2, "", 1.15),
        Finding.at_least("experts", "part of the copy's rate", 0.7, "", 0.65),
    ]
    results.save("gpu_h200", [finding.as_row() for finding in findings], directory, machine="NVIDIA H200")
    (page,) = gpu_page.measured()
    assert page.startswith("NVIDIA H200, ")
    assert "| experts | 5 tokens by 1 | 1.2 |  | <= 1.15 | missed |" in page
    assert page.endswith("| >= 0.65 | reached |")


def test_what_was_compiled_is_summed_up_by_kernel_and_architecture(directory: Path) -> None:
    row = {
        "kernel": "mla", "dtype": "bf16", "arch": 90, "registers": 200, "spills": 0, "shared_bytes": 10,
        "instructions": {"HGMMA": 4, "LDG": 1},
    }  # fmt: skip
    blackwell = row | {"arch": 100, "instructions": {"UTCHMMA": 2}}
    results.save("aot", [row, row | {"registers": 100, "shared_bytes": 20}, blackwell], directory)
    assert gpu_page.compiled().splitlines()[2:] == [
        "| mla | bf16 | sm_90 | 2 | 200 | 0 | 20 | HGMMA |",
        "| mla | bf16 | sm_100 | 1 | 200 | 0 | 10 | UTCHMMA |",
    ]
