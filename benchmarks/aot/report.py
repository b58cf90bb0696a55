"""Compiles cases in parallel and judges what came out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any, Self

from benchmarks.aot.case import MANY_TOKENS, Case
from benchmarks.aot.cases import all_cases
from benchmarks.aot.compiled import Compiled, compile_launch, launch_key

ARCHS = (90, 100)
NUM_PROCESSES = 2
# Of one block: 227 KiB on compute capabilities 9.0 and 10.0 (CUDA C++ Programming Guide).
MAX_SHARED_BYTES = 232_448
# Columns of a multiprocessor's tensor memory on 10.0 (PTX ISA, tcgen05.alloc).
MAX_TENSOR_MEMORY = 512
# The products of each chip's own tensor cores; it runs those of older chips at half the rate or less.
OWN_PRODUCTS = {90: ("HGMMA", "QGMMA", "IGMMA"), 100: ("UTCHMMA", "UTCQMMA", "UTCIMMA")}
# Another release of the compiler may take a register more; a tenth more is a change of ours.
MORE_REGISTERS = 1.1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case compiled for one architecture."""

    kernel: str
    dtype: str
    arch: int
    shape: Mapping[str, int | str]
    spills: int
    registers: int
    shared_bytes: int
    tensor_memory: int
    matrix_instructions: int
    instructions: Mapping[str, int]
    is_product: bool

    @classmethod
    def of(cls, case: Case, arch: int, compiled: Compiled) -> Self:
        """Puts a case and what it compiles to side by side."""
        return cls(
            kernel=case.kernel,
            dtype=case.dtype,
            arch=arch,
            shape=case.shape,
            spills=compiled.spills,
            registers=compiled.registers,
            shared_bytes=compiled.shared_bytes,
            tensor_memory=compiled.tensor_memory,
            matrix_instructions=sum(compiled.matrix_instructions.values()),
            instructions=dict(compiled.instructions),
            is_product=case.is_product,
        )

    @property
    def title(self) -> str:
        """Names the row."""
        sizes = ", ".join(f"{name} {value}" for name, value in self.shape.items())
        return f"{self.kernel} {self.dtype} on sm_{self.arch} ({sizes})"

    @property
    def products(self) -> frozenset[str]:
        """The kinds of own products in the code."""
        return frozenset(self.instructions) & frozenset(OWN_PRODUCTS[self.arch])

    def faults(self) -> Iterator[str]:
        """Yields what must not be, in words."""
        if self.spills:
            yield f"{self.spills} bytes are spilled"
        if self.shared_bytes > MAX_SHARED_BYTES:
            yield f"{self.shared_bytes} bytes of shared memory, {MAX_SHARED_BYTES} at most"
        if self.tensor_memory > MAX_TENSOR_MEMORY:
            yield f"{self.tensor_memory} columns of tensor memory, {MAX_TENSOR_MEMORY} at most"
        if self.is_product and not self.products:
            yield f"none of {', '.join(OWN_PRODUCTS[self.arch])}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the row as it is kept and printed."""
        return asdict(self)


def compile_cases(archs: Sequence[int], *, few: bool = False, kernels: Sequence[str] = ()) -> list[Row]:
    """Compiles cases for every architecture, of some kernels or all; what comes to the same code once."""
    wanted = {n: case for n, case in enumerate(cached_cases()) if not kernels or case.kernel in kernels}
    if few:
        wanted = first_of_each(wanted)
    keys = {number: launch_key(case.launch) for number, case in wanted.items()}
    tasks = {(keys[number], arch): (number, arch) for number in wanted for arch in archs}
    # Not forked: the threads of torch do not live on in a fork.
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")) as pool:
        compiled = dict(zip(tasks, pool.map(compile_case, *zip(*tasks.values(), strict=True)), strict=True))
    return [Row.of(case, arch, compiled[keys[n], arch]) for n, case in wanted.items() for arch in archs]


def first_of_each(cases: Mapping[int, Case]) -> dict[int, Case]:
    """Returns a case of each kernel and type of weight; of products one with few tokens and one with many."""
    firsts: dict[tuple[object, ...], int] = {}
    for number, case in cases.items():
        is_many = case.is_product and case.shape["num_tokens"] == MANY_TOKENS
        firsts.setdefault((case.kernel, case.dtype, is_many), number)
    return {number: cases[number] for number in firsts.values()}


def compile_case(number: int, arch: int) -> Compiled:
    """Compiles one of all cases, which each process makes for itself: kernels cannot be sent to another."""
    case = cached_cases()[number]
    try:
        return compile_launch(case.launch, arch)
    except Exception as error:
        raise RuntimeError(f"{case.kernel} {case.dtype} on sm_{arch} {dict(case.shape)}: {error}") from error


@cache
def cached_cases() -> list[Case]:
    """Returns all cases, made once."""
    return all_cases()


def merged(rows: Sequence[Row], recorded: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns what is recorded with all rows of the kernels that were compiled again replaced."""
    again = {row.kernel for row in rows}
    return [*(row for row in recorded if row["kernel"] not in again), *(row.as_dict() for row in rows)]


def regressions(rows: Sequence[Row], recorded: Sequence[Mapping[str, Any]]) -> list[str]:
    """Says where rows are worse than those recorded: more registers, fewer kinds of products, not there."""
    before = {_key(row): row for row in recorded}
    found = []
    for row in rows:
        old = before.get(_key(row.as_dict()))
        if old is None:
            found.append(f"{row.title}: is not recorded")
            continue
        if row.registers > MORE_REGISTERS * old["registers"]:
            found.append(f"{row.title}: {row.registers} registers, {old['registers']} before")
        if lost := frozenset(old["instructions"]) & frozenset(OWN_PRODUCTS[row.arch]) - row.products:
            found.append(f"{row.title}: no {', '.join(sorted(lost))} any more")
    return found


def differing_cases(
    cases: Sequence[Case], archs: Sequence[int], recorded: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Says which cases are not recorded, and which that are recorded are no more."""
    made = {
        (case.kernel, case.dtype, arch, tuple(sorted(case.shape.items()))) for case in cases for arch in archs
    }
    known = {_key(row) for row in recorded if row["arch"] in archs}
    missing, gone = (Counter(key[:3] for key in keys) for keys in (made - known, known - made))
    found = [
        f"{k} {dtype} on sm_{arch}: {n} cases are not recorded" for (k, dtype, arch), n in missing.items()
    ]
    return found + [
        f"{k} {dtype} on sm_{arch}: {n} recorded cases are gone" for (k, dtype, arch), n in gone.items()
    ]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["kernel"], row["dtype"], row["arch"], tuple(sorted(row["shape"].items()))


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as a table for a terminal."""
    lines = [
        f"{'kernel':<18}{'type':<6}{'arch':<5}{'model':<13}{'ranks':>5}{'tokens':>7}{'regs':>6}{'spills':>7}"
        f"{'shared':>8}{'tensor':>7}  instructions"
    ]
    for row in rows:
        shape, counts = row.shape, row.instructions
        lines.append(
            f"{row.kernel:<18}{row.dtype:<6}{row.arch:<5}{shape['model']:<13}{shape['num_ranks']:>5}"
            f"{shape['num_tokens']:>7}{row.registers:>6}{row.spills:>7}{row.shared_bytes:>8}"
            f"{row.tensor_memory:>7}  {' '.join(f'{name} {counts[name]}' for name in sorted(counts))}"
        )
    return "\n".join(lines)
