"""Kernels compile for GPUs that are not here: without spills, on tensor cores, no worse than is recorded."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import results
from benchmarks.aot.case import Case
from benchmarks.aot.report import Row, differing_cases, first_of_each, merged, regressions, table
from outrider.kernels.triton.launch import Launch

NAMES = {"moe_gate_up", "moe_down", "mla", "gate", "norm_rotary", "sample_verify", "linear", "head_linear"}
KEYS = {"kernel", "dtype", "arch", "shape", "spills", "registers", "shared_bytes", "matrix_instructions"}
ROW = Row(
    kernel="mla",
    dtype="bf16",
    arch=90,
    shape={"model": "kimi-k2.5", "num_ranks": 1, "num_tokens": 8},
    spills=0,
    registers=100,
    shared_bytes=1000,
    tensor_memory=0,
    matrix_instructions=8,
    instructions={"HGMMA": 8, "LDG": 4},
    is_product=True,
)


# About 100 seconds of a processor's time, shared by two processes.
@pytest.mark.timeout(900)
def test_one_launch_of_every_kernel_compiles_as_well_as_is_recorded() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    line = [sys.executable, "-m", "benchmarks.aot_report", "--few", "--compare", "--json"]
    ended = subprocess.run(line, capture_output=True, text=True, cwd=results.ROOT, env=environment)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout.splitlines()[-1])
    assert {row["kernel"] for row in rows} >= NAMES
    assert {row["arch"] for row in rows} == {90, 100}
    assert all(row.keys() >= KEYS for row in rows)
    assert {row["dtype"] for row in rows if row["kernel"] == "moe_down"} == {"bf16", "fp8", "int4"}
    assert all(row["matrix_instructions"] > 0 for row in rows if row["kernel"] in ("moe_down", "mla"))


def test_what_is_recorded_has_no_fault() -> None:
    recorded = results.load("aot")
    assert recorded is not None
    rows = [Row(**row) for row in recorded.rows]
    assert [f"{row.title}: {fault}" for row in rows for fault in row.faults()] == []


def case(kernel: str, num_tokens: int, *, is_product: bool) -> Case:
    shape = {"model": "kimi-k2.5", "num_ranks": 1, "num_tokens": num_tokens}
    launch = Launch(kernel=None, grid=(1,), arguments={})
    return Case(kernel=kernel, dtype="bf16", shape=shape, launch=launch, is_product=is_product)


def test_few_cases_are_one_of_each_kernel_and_of_products_one_with_many_tokens() -> None:
    cases = [
        case(kernel, tokens, is_product=kernel == "mla")
        for kernel in ("mla", "gate")
        for tokens in (8, 2048, 32)
    ]
    assert list(first_of_each(dict(enumerate(cases)))) == [0, 1, 3]


def test_cases_that_are_not_recorded_and_records_without_a_case_are_named() -> None:
    row = ROW.as_dict()
    same = Case(
        kernel="mla",
        dtype="bf16",
        shape=ROW.shape,
        launch=case("mla", 8, is_product=True).launch,
        is_product=True,
    )
    assert differing_cases([same], (90,), [row]) == []
    assert differing_cases([same], (90, 100), [row]) == ["mla bf16 on sm_100: 1 cases are not recorded"]
    assert differing_cases([], (90,), [row]) == ["mla bf16 on sm_90: 1 recorded cases are gone"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"spills": 8}, "8 bytes are spilled"),
        ({"shared_bytes": 232_449}, "232449 bytes of shared memory"),
        ({"arch": 100, "instructions": {"UTCHMMA": 1}, "tensor_memory": 513}, "513 columns of tensor memory"),
        ({"instructions": {"HMMA": 64}}, "none of HGMMA"),
        ({"arch": 100}, "none of UTCHMMA"),
    ],
)
def test_a_fault_is_named(changes: dict, fault: str) -> None:
    assert list(ROW.faults()) == []
    (found,) = replace(ROW, **changes).faults()
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("changes", "regression"),
    [
        ({"registers": 111}, "111 registers, 100 before"),
        ({"instructions": {"QGMMA": 8}}, "no HGMMA any more"),
        ({"dtype": "fp8"}, "is not recorded"),
    ],
)
def test_a_regression_is_named(changes: dict, regression: str) -> None:
    assert regressions([replace(ROW, registers=110)], [ROW.as_dict()]) == []
    (found,) = regressions([replace(ROW, **changes)], [ROW.as_dict()])
    assert found.endswith(regression)


def test_rows_of_a_kernel_that_is_compiled_again_are_replaced_and_the_others_stay() -> None:
    other = ROW.as_dict() | {"kernel": "gate"}
    assert merged([replace(ROW, registers=90)], [ROW.as_dict(), other]) == [
        other,
        ROW.as_dict() | {"registers": 90},
    ]


def test_the_table_has_a_line_for_each_row() -> None:
    lines = table([ROW, replace(ROW, arch=100)]).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["mla", "bf16", "90"], ["mla", "bf16", "100"]]
