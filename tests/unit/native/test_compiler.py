"""Where the build of outrider-native finds a compiler."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "native" / "compiler.py"


@pytest.fixture
def compiler(monkeypatch, tmp_path) -> ModuleType:
    """The module, on a machine whose PATH is an empty folder."""
    for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = spec_from_file_location("compiler", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_compiler_that_the_environment_names_is_kept(compiler, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "my-c++ --flag")
    assert compiler.is_at_hand()
    compiler.choose()
    assert os.environ["CXX"] == os.environ["CC"] == "my-c++ --flag"


def test_a_compiler_on_the_path_is_taken(compiler, tmp_path) -> None:
    found = tmp_path / "g++"
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    assert compiler.is_at_hand()
    compiler.choose()
    assert os.environ["CXX"] == str(found)
    assert os.environ["LDCXXSHARED"] == f"{found} -shared"


def test_without_one_the_package_index_gives_it(compiler) -> None:
    assert not compiler.is_at_hand()
    compiler.choose()
    assert os.environ["CXX"].startswith(f"{sys.executable} -m ziglang c++")
    assert os.environ["LDCXXSHARED"] == os.environ["CXX"] + " -shared"
