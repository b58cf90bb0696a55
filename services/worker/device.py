"""Which device computes, and with which kernels: decided before anything is loaded."""

import os
import platform
from importlib.util import find_spec
from pathlib import Path

import torch

from outrider.kernels import BACKENDS
from outrider.kernels.torch.attention_plan import SPLIT_TOKENS
from outrider.rpc.config import ConfigError

BACKEND_OF = {"cpu": "torch", "cuda": "triton"}
"""The kernels made for each kind of device."""

MIN_CAPABILITY = (9, 0)
"""What the instructions of the Triton kernels need of a GPU."""


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """Returns the device, and makes it this thread's own. Raises ConfigError if it is not to be had.

    Each rank of a machine takes a GPU of its own: the one of its number among them.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in BACKEND_OF:
        raise ConfigError(f"OUTRIDER_WORKER_DEVICE must be cpu, cuda or cuda:N, is {name!r}")
    if device.type == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise ConfigError(f"OUTRIDER_WORKER_DEVICE is {name}, and torch {torch.__version__} has no CUDA")
    if not torch.cuda.is_available():
        raise ConfigError(f"OUTRIDER_WORKER_DEVICE is {name}, and there is no GPU or no driver for it")
    if local_rank is not None:
        if device.index is not None:
            raise ConfigError(f"OUTRIDER_WORKER_DEVICE is {name}, and each rank takes a GPU of its own: cuda")
        device = torch.device("cuda", local_rank)
    device = torch.device("cuda", device.index or 0)
    if device.index >= torch.cuda.device_count():
        raise ConfigError(f"OUTRIDER_WORKER_DEVICE is {name}, and there are {torch.cuda.device_count()} GPUs")
    # Kernels are launched on the thread's current device.
    torch.cuda.set_device(device)
    return device


def choose_backend(name: str, device: torch.device) -> str:
    """Returns the kernels' name. Raises ConfigError if they cannot run on the device."""
    backend = BACKEND_OF[device.type] if name == "auto" else name
    if backend not in BACKENDS:
        raise ConfigError(
            f"OUTRIDER_WORKER_BACKEND must be auto or one of {', '.join(BACKENDS)}, is {name!r}"
        )
    if backend == "triton":
        _check_triton(device)
    return backend


def device_name(device: torch.device, num_ranks: int) -> str:
    """Returns what decides the speed of a step, as far as a name can say it."""
    return _one_device(device) + (f", {num_ranks} ranks" if num_ranks > 1 else "")


def _one_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{device.type} {models[0] if models else platform.machine()} x{torch.get_num_threads()}"


def check_block_size(block_size: int, backend: str) -> None:
    """Raises ConfigError if the kernels do not take blocks of that size."""
    if backend == "torch" and SPLIT_TOKENS % block_size:
        raise ConfigError(
            f"OUTRIDER_WORKER_BLOCK_SIZE is {block_size}, and with the torch backend it must divide"
            f" {SPLIT_TOKENS}"
        )


def _check_gpu(device: torch.device) -> None:
    # Imported once Triton is known to be there.
    from outrider.kernels.triton.tiles import SHARED_BYTES

    major, minor = torch.cuda.get_device_capability(device)
    num_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    if (major, minor) < MIN_CAPABILITY or num_bytes < SHARED_BYTES:
        raise ConfigError(
            f"OUTRIDER_WORKER_DEVICE: {torch.cuda.get_device_name(device)} has compute capability"
            f" {major}.{minor} and {num_bytes} bytes of shared memory; the triton backend needs"
            f" {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} and {SHARED_BYTES}, as H100, H200 and B200 have"
        )


def _check_triton(device: torch.device) -> None:
    if find_spec("triton") is None:
        raise ConfigError(
            "OUTRIDER_WORKER_BACKEND: triton is not installed; OUTRIDER_WORKER_BACKEND=torch needs none"
        )
    if device.type == "cuda":
        _check_gpu(device)
    elif os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            "OUTRIDER_WORKER_BACKEND: triton needs a CUDA device; OUTRIDER_WORKER_DEVICE names one"
        )
