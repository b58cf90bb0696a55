"""The worker's configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from outrider.rpc.config import load_config
from outrider.rpc.server import Listen

DTYPES = ("auto", "bfloat16", "float16", "float32")
# More than any machine has processors.
MAX_NUM_THREADS = 4096
# Between the ports of one rank and the next.
PORT_STEP = 10
MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """The processes that hold the model together, and how experts are placed on them."""

    # Each computes with num_threads. More than one are started by torchrun, which this process becomes unless
    # it was started by it.
    num_ranks: int = 1
    # The machines that they run on, in equal parts; each starts its own, with its number below num_nodes.
    num_nodes: int = 1
    node: int = 0
    # HOST:PORT of node 0, where the ranks of several nodes find each other.
    rendezvous: str = ""
    # A rank that gives no sign of life for so long is taken to be stopped: the group begins anew without it.
    peer_seconds: float = 2.0
    # Slots for further copies of experts, beside one for each, over all ranks.
    num_redundant_experts: int = 0
    # Experts are moved between ranks every so often, for a gain, and so many bytes on one rank between two
    # steps at most. 0: never.
    rebalance_seconds: float = 60.0
    rebalance_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name, least in (
            ("num_ranks", 1), ("num_nodes", 1), ("node", 0), ("num_redundant_experts", 0),
            ("rebalance_seconds", 0), ("rebalance_bytes", 0),
        ):  # fmt: skip
            if not getattr(self, name) >= least:
                raise ValueError(f"{_variable(name)} must be at least {least}, is {getattr(self, name)}")
        if not self.peer_seconds > 0:
            raise ValueError(f"{_variable('peer_seconds')} must be positive, is {self.peer_seconds:g}")
        if self.num_ranks % self.num_nodes:
            raise ValueError(
                f"{_variable('num_ranks')} is {self.num_ranks}: {self.num_nodes} nodes have no equal parts"
            )
        if self.node >= self.num_nodes:
            raise ValueError(f"{_variable('node')} is {self.node}, of {self.num_nodes} nodes")
        host, _, port = self.rendezvous.rpartition(":")
        if self.num_nodes > 1 and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(
                f"{_variable('rendezvous')} must name node 0 as HOST:PORT, is {self.rendezvous!r}"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings, read from OUTRIDER_WORKER_*."""

    # A scheduler's stream never ends by itself, and a step in flight is over sooner than this.
    listen: Listen = field(default_factory=lambda: Listen(grpc_port=50053, http_port=9103, drain_seconds=2))
    # A directory with config.json and safetensors; tokenizer.json is needed for grammars only.
    model_dir: Path
    # Unset: the directory's name.
    model_name: str = ""
    # A draft head in EAGLE-3 form, of which the worker computes the first half. Unset: no hidden vectors.
    head_dir: Path | None = None
    # auto: as the weights are stored.
    dtype: str = "auto"
    # The kernels. auto: those made for the device.
    backend: str = "auto"
    # cpu, cuda or cuda:N.
    device: str = "cpu"
    # Threads of the forward pass: part of the numerics id. Unset: what torch takes.
    num_threads: int | None = None
    # Room for keys and values, in bytes, beside weights and CUDA graphs; num_blocks, if set, decides instead.
    kv_cache_bytes: int = 1 << 30
    num_blocks: int | None = None
    block_size: int = 16
    # The most rows of one step: bounds the time of a step and the memory it takes.
    max_num_batched_tokens: int = 512
    # On a GPU, CUDA graphs are recorded at start for steps of up to so many sequences and rows; without
    # entries none are. Rows that fill a step up to the next number cost time: the small ones are all there.
    graph_num_sequences: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    graph_num_rows: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    # A step that runs for longer is stuck: the process ends, and all ranks with it.
    step_seconds: float = 300
    group: GroupConfig = field(default_factory=GroupConfig)
    # Where the loads of experts are kept, so that a group that is restarted begins well placed. They are
    # counts, no text. Unset: nowhere.
    state_dir: Path | None = None
    # The longest sequence. Unset: what the model allows.
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"{_variable('dtype')} must be one of {', '.join(DTYPES)}, is {self.dtype!r}")
        for name in (
            "num_threads", "kv_cache_bytes", "num_blocks", "block_size", "max_num_batched_tokens",
            "step_seconds", "max_model_len",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_variable(name)} must be at least 1, is {value}")
        if self.num_threads is not None and self.num_threads > MAX_NUM_THREADS:
            raise ValueError(
                f"{_variable('num_threads')} must be at most {MAX_NUM_THREADS}, is {self.num_threads}"
            )
        last_rank = self.group.num_ranks - 1
        for name in ("grpc_port", "http_port"):
            # Any free port is one for all of them.
            port = getattr(self.listen, name)
            if port and port + PORT_STEP * last_rank > MAX_PORT:
                raise ValueError(
                    f"{_variable(name)} is {port}: rank {last_rank} would listen on"
                    f" {port + PORT_STEP * last_rank}"
                )
        for name in ("graph_num_sequences", "graph_num_rows"):
            if any(value < 1 for value in getattr(self, name)):
                raise ValueError(f"each of {_variable(name)} must be at least 1")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the environment. Raises ConfigError naming a wrong variable."""
        return load_config(cls, "OUTRIDER_WORKER", environ)


def _variable(name: str) -> str:
    return f"OUTRIDER_WORKER_{name.upper()}"
