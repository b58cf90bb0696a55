"""What a launch compiles to on one architecture: registers, spills, shared memory, instructions."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from outrider.kernels.triton.launch import Argument, Launch

TYPES = {
    "torch.float32": "fp32",
    "torch.float64": "fp64",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float8_e4m3fn": "fp8e4nv",
    "torch.int64": "i64",
    "torch.int32": "i32",
    "torch.uint8": "u8",
    "torch.int8": "i8",
    "torch.bool": "i1",
}
ALIGNMENT = 16
# As SASS spells them: Hopper's and Blackwell's own products, then those of older chips.
MATRIX_INSTRUCTIONS = ("HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "HMMA", "QMMA", "IMMA")
COPY_INSTRUCTIONS = ("UTMALDG", "UTMASTG", "LDGSTS", "LDG", "STG", "LDL", "STL")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One kernel compiled for one architecture."""

    registers: int
    spills: int  # bytes that the code's moves to and from local memory have together
    shared_bytes: int
    tensor_memory: int  # columns of Blackwell's memory for accumulators
    instructions: Counter[str]  # of MATRIX_INSTRUCTIONS and COPY_INSTRUCTIONS, by name

    @property
    def matrix_instructions(self) -> dict[str, int]:
        """How many products of each kind the code holds."""
        return {name: self.instructions[name] for name in MATRIX_INSTRUCTIONS if self.instructions[name]}


def compile_launch(launch: Launch, arch: int) -> Compiled:
    """Compiles a launch for sm_`arch`; TRITON_INTERPRET must have been unset when its kernel was imported."""
    if not isinstance(launch.kernel, JITFunction):
        raise RuntimeError("kernels were imported under TRITON_INTERPRET: unset it to compile them")
    source = _source(launch)
    options = {"num_warps": launch.warps(arch), "num_stages": launch.num_stages}
    built = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with TemporaryDirectory() as directory:
        cubin = Path(directory) / "kernel.cubin"
        cubin.write_bytes(built.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        sass = _tool("cuobjdump", "--dump-sass", str(cubin))
    return Compiled(
        registers=int(_found(r"REG:(\d+)", usage)),
        spills=_spilled_bytes(sass),
        shared_bytes=int(built.metadata.shared),
        tensor_memory=int(built.metadata.tmem_size),
        instructions=Counter(
            name
            for name in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(\w+)", sass, re.MULTILINE)
            if name in MATRIX_INSTRUCTIONS + COPY_INSTRUCTIONS
        ),
    )


def launch_key(launch: Launch) -> str:
    """Tells launches apart that compile to different code."""
    return f"{_source(launch).hash()} {launch.num_warps} {launch.num_warps_on} {launch.num_stages}"


def _source(launch: Launch) -> ASTSource:
    """The kernel with the types that a launch would find, and its promises about alignment."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.arguments.get(parameter.name)
        is_special = type(value) is int and not parameter.do_not_specialize
        if value is None or (is_special and value == 1):
            signature[name], constants[name] = "constexpr", 1 if value == 1 else launch.constants.get(name)
            continue
        signature[name] = _type(value)
        if isinstance(value, Tensor) or (is_special and value % ALIGNMENT == 0):
            attributes[(place,)] = [["tt.divisibility", ALIGNMENT]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def _type(value: Argument) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPES[str(value.dtype)]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _spilled_bytes(sass: str) -> int:
    """What `spills` says, of one thread: an instruction counts once, however often it runs."""
    widths = re.findall(r"\b(?:LDL|STL)(?:\.\w+)*?(?:\.(64|128))?\s", sass)
    return sum(int(width or 32) // 8 for width in widths)


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern} in {text[:200]}")
    return found[1]
