"""Opens the safetensors files of a Hugging Face directory and checks them before anything is loaded."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.model.config import ModelConfig, read_json
from outrider.model.errors import CheckpointError
from outrider.model.quantization import LANGUAGE_PREFIX, Storage
from outrider.model.weights import Expected, Shape, expected_tensors, linear_storages

logger = logging.getLogger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Vision parts of multimodal checkpoints, and buffers that old exporters wrote out.
SKIPPED = re.compile(r"vision_tower\.|mm_projector\.|.*\.rotary_emb\.inv_freq$")
LAYER = re.compile(r"model\.layers\.(\d+)\.")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
BYTES_PER_ELEMENT = {"F32": 4, "I32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1}  # of others two
MAX_NUM_NAMED = 5  # tensors that one message lists; the rest are counted


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies and what its file's header says about it."""

    file: Path
    name: str  # as the file spells it
    shape: Shape
    dtype: str  # as safetensors spells it

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * BYTES_PER_ELEMENT.get(self.dtype, 2)


class Checkpoint:
    """The tensors of a directory by their canonical names, read one by one through a memory map."""

    def __init__(
        self, directory: Path, files: dict[Path, safe_open], tensors: dict[str, StoredTensor]
    ) -> None:
        self.directory = directory
        self.tensors = tensors
        self._files = files

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Read the headers of all files; raises CheckpointError for one that is missing or damaged."""
        files = {file: open_file(file) for file in weight_files(directory)}
        tensors = {
            stored.name.removeprefix(LANGUAGE_PREFIX): stored
            for file, opened in files.items()
            for stored in stored_tensors(file, opened)
        }
        return cls(directory, files, tensors)

    @property
    def files(self) -> list[Path]:
        return list(self._files)

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are stored as, judged by the embedding."""
        return DTYPES[self.tensors["model.embed_tokens.weight"].dtype]

    def storage(self, linear: str) -> Storage | None:
        """How a linear's weight is stored; None if it is not there."""
        if f"{linear}.weight_packed" in self.tensors:
            return Storage.INT4
        weight = self.tensors.get(f"{linear}.weight")
        if weight is None:
            return None
        return Storage.FP8 if weight.dtype == "F8_E4M3" else Storage.PLAIN

    def check(self, config: ModelConfig) -> None:
        """Raise CheckpointError unless the tensors are exactly those that the config demands."""
        others = [
            f"{linear} is {stored}, not {said}"
            for linear, said in linear_storages(config).items()
            if (stored := self.storage(linear)) not in (said, None)
        ]
        self._refuse("weights stored otherwise than quantization_config says", others)
        expected = expected_tensors(config)
        self.require(expected)
        self.refuse_others(expected, lambda name: may_skip(name, config))

    def require(self, expected: Mapping[str, Expected]) -> None:
        """Raise CheckpointError unless these tensors are there, of these shapes and types."""
        missing = [
            f"{name} {list(what.shape)}" for name, what in expected.items() if name not in self.tensors
        ]
        self._refuse("missing tensors", missing)
        pairs = [(name, self.tensors[name], what) for name, what in expected.items()]
        misshapen = [
            f"{name} is {list(stored.shape)}, not {list(what.shape)}"
            for name, stored, what in pairs
            if stored.shape != what.shape
        ]
        self._refuse("tensors of wrong shape", misshapen)
        mistyped = [
            f"{name} is {stored.dtype}, not {' or '.join(what.dtypes)}"
            for name, stored, what in pairs
            if stored.dtype not in what.dtypes
        ]
        self._refuse("tensors of wrong type", mistyped)

    def refuse_others(self, expected: Mapping[str, Expected], may_skip: Callable[[str], bool]) -> None:
        """Raise CheckpointError for a tensor that is not expected; one that may be skipped is logged."""
        others = [name for name in self.tensors if name not in expected]
        self._refuse("unexpected tensors", [name for name in others if not may_skip(name)])
        if others:
            logger.info("skipped %d tensors of %s: %s", len(others), self.directory, shortened(others))

    def num_expected_bytes(self, config: ModelConfig) -> int:
        """Bytes of the tensors that loading will read."""
        return sum(self.tensors[name].num_bytes for name in expected_tensors(config))

    def read(self, name: str) -> Tensor:
        stored = self.tensors[name]
        try:
            return self._files[stored.file].get_tensor(stored.name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{stored.file}: {name}: {error}") from None

    def _refuse(self, problem: str, names: list[str]) -> None:
        if names:
            raise CheckpointError(f"{self.directory}: {len(names)} {problem}: {shortened(names)}")


def weight_files(directory: Path) -> list[Path]:
    """The one file, or the shards that the index names; all of them exist."""
    if not (directory / INDEX_FILE).exists():
        files = [directory / SINGLE_FILE]
    else:
        shards = read_json(directory / INDEX_FILE).section("weight_map").values.values()
        files = [directory / Path(str(name)).name for name in sorted(set(shards))]
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{file}: is missing")
    return files


def open_file(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: is damaged or not a safetensors file: {error}") from None


def stored_tensors(file: Path, opened: safe_open) -> Iterator[StoredTensor]:
    for name in opened.keys():  # noqa: SIM118
        header = opened.get_slice(name)
        yield StoredTensor(file=file, name=name, shape=tuple(header.get_shape()), dtype=header.get_dtype())


def may_skip(name: str, config: ModelConfig) -> bool:
    """Vision parts, exporters' buffers, a head tied to the embedding, and layers past the last (MTP)."""
    layer = LAYER.match(name)
    past_last = layer is not None and int(layer[1]) >= config.num_layers
    tied_head = config.tied_embeddings and name == "lm_head.weight"
    return past_last or tied_head or SKIPPED.match(name) is not None


def shortened(names: Iterable[str]) -> str:
    names = list(names)
    rest = len(names) - MAX_NUM_NAMED
    return ", ".join(names[:MAX_NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
