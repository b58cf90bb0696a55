"""The extension modules of outrider-native."""

import sys
from glob import glob
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compiler
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup


def _extension(name: str) -> Pybind11Extension:
    """One module from one folder of sources. No -march: a wheel runs on machines other than its builder's."""
    return Pybind11Extension(
        f"outrider_native.{name}",
        sorted(glob(f"src/{name}/*.cpp")),
        # How it is compiled counts too.
        depends=[*sorted(glob(f"src/{name}/*.h")), "setup.py", "compiler.py", "pyproject.toml"],
        cxx_std=17,
        extra_compile_args=["-O3", "-g0", "-Wall", "-Wextra"],
    )


compiler.choose()
setup(ext_modules=[_extension("controller"), _extension("suffix")])
