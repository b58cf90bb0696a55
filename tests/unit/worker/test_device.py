"""What a worker without the right device, driver or package says, in one line."""

from types import SimpleNamespace

import pytest
import torch

from outrider.rpc.config import ConfigError
from services.worker.device import choose_backend, choose_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def pretend_a_gpu(monkeypatch, *, capability=(9, 0), shared_bytes=232_448):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(shared_memory_per_block_optin=shared_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")


@pytest.mark.parametrize("name", ["banana", "mps", "cuda:x", ""])
def test_a_device_of_another_kind_is_refused(name):
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_DEVICE must be cpu, cuda or cuda:N"):
        choose_device(name)


def test_a_torch_without_cuda_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ConfigError, match=r"OUTRIDER_WORKER_DEVICE is cuda, and torch .* has no CUDA"):
        choose_device("cuda")


def test_a_machine_without_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_DEVICE is cuda:1, and there is no GPU"):
        choose_device("cuda:1")


def test_a_gpu_behind_the_last_is_named(monkeypatch):
    pretend_a_gpu(monkeypatch)
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_DEVICE is cuda:2, and there are 2 GPUs"):
        choose_device("cuda:2")


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_that_is_there_becomes_the_thread_s_own(monkeypatch, name, index):
    pretend_a_gpu(monkeypatch)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device(name) == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]


def test_each_device_has_kernels_of_its_own_unless_others_are_named(monkeypatch):
    pretend_a_gpu(monkeypatch)
    assert choose_backend("auto", CPU) == "torch"
    assert choose_backend("auto", CUDA) == "triton"
    assert choose_backend("torch", CUDA) == "torch"


def test_kernels_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_BACKEND must be auto or one of torch, triton"):
        choose_backend("abacus", CPU)


def test_triton_takes_a_processor_only_where_it_is_interpreted(monkeypatch):
    assert choose_backend("triton", CPU) == "triton"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_BACKEND: triton needs a CUDA device"):
        choose_backend("triton", CPU)


def test_a_missing_triton_is_named(monkeypatch):
    pretend_a_gpu(monkeypatch)
    monkeypatch.setattr("services.worker.device.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_BACKEND: triton is not installed"):
        choose_backend("auto", CUDA)


@pytest.mark.parametrize(
    ("capability", "shared_bytes"), [((8, 0), 166_912), ((8, 9), 101_376), ((12, 0), 101_376)]
)
def test_a_gpu_without_what_the_kernels_need_is_named(monkeypatch, capability, shared_bytes):
    pretend_a_gpu(monkeypatch, capability=capability, shared_bytes=shared_bytes)
    found = rf"{capability[0]}\.{capability[1]} and {shared_bytes} bytes of shared memory"
    with pytest.raises(
        ConfigError, match=rf"OUTRIDER_WORKER_DEVICE: Some GPU .* {found}; .* 9\.0 and 232448"
    ):
        choose_backend("auto", CUDA)
    assert choose_backend("torch", CUDA) == "torch"
