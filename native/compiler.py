"""Finds a C++ compiler: the one that the environment names, one on the PATH, or the ziglang package's."""

import os
import shutil
import sys

_NAMES = ("c++", "g++", "clang++")
# What zig links against on Linux: old enough for every image of the Python versions supported.
_GLIBC = "2.28"


def is_at_hand() -> bool:
    """Whether a compiler is named by CXX or found on the PATH."""
    return bool(os.environ.get("CXX")) or any(map(shutil.which, _NAMES))


def choose() -> None:
    """Sets the variables that setuptools reads, unless CXX is set already."""
    if os.environ.get("CXX"):
        os.environ.setdefault("CC", os.environ["CXX"])
        return
    command = next(filter(None, map(shutil.which, _NAMES)), None) or _zig()
    link = f"{command} -shared"
    os.environ.update(CC=command, CXX=command, LDSHARED=link, LDCXXSHARED=link)


def _zig() -> str:
    machine = os.uname().machine
    target = f" -target {machine}-linux-gnu.{_GLIBC}" if sys.platform == "linux" and not _is_musl() else ""
    return f"{sys.executable} -m ziglang c++{target}"


def _is_musl() -> bool:
    return any(name.startswith("ld-musl-") for name in os.listdir("/lib"))
