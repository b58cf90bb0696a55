"""Every backend offers exactly what the interface names."""

import inspect

import pytest

from outrider.kernels import BACKENDS, DRAFTING, load_kernels
from outrider.kernels.interface import Kernels

EVERY_BACKEND = pytest.mark.parametrize("backend", [*BACKENDS, DRAFTING])
FUNCTIONS = [name for name, member in vars(Kernels).items() if inspect.isfunction(member) and name[0] != "_"]
CONSTANTS = [name for name in Kernels.__annotations__ if name not in FUNCTIONS]


@EVERY_BACKEND
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_interfaces_parameters(backend, name):
    function = getattr(load_kernels(backend), name)
    named = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
    assert list(inspect.signature(function).parameters) == named


@EVERY_BACKEND
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_there_and_of_its_type(backend, name):
    assert isinstance(getattr(load_kernels(backend), name), Kernels.__annotations__[name])


@EVERY_BACKEND
def test_all_that_is_exported_is_in_the_interface(backend):
    exported = set(vars(load_kernels(backend)).get("__all__", []))
    assert exported == {*FUNCTIONS, *CONSTANTS}


def test_the_interface_has_functions_and_constants():
    assert {"linear", "gate", "sample_and_verify"} <= set(FUNCTIONS)
    assert {"NAME", "VERSION"} <= set(CONSTANTS)


@EVERY_BACKEND
def test_a_backend_has_the_name_that_loads_it(backend):
    assert backend == load_kernels(backend).NAME


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend 'abacus' is not one of torch, triton, drafting"):
        load_kernels("abacus")
