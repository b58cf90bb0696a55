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
from outrider.model.weights import Shape, expected_tensors

logger = logging.getLogger(__name__)

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
LANGUAGE_PREFIX = "language_model."
# Vision parts of multimodal checkpoints, and buffers that old exporters wrote out.
SKIPPED = re.compile(r"vision_tower\.|mm_projector\.|.*\.rotary_emb\.inv_freq$")
LAYER = re.compile(r"model\.layers\.(\d+)\.")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
BYTES_PER_ELEMENT = {"F32": 4, "I64": 8, "BOOL": 1}  # of others two
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

    def check(self, config: ModelConfig) -> None:
        """Raise CheckpointError unless the tensors are exactly those that the config demands."""
        expected = expected_tensors(config)
        self.require(expected)
        self.refuse_others(expected, lambda name: may_skip(name, config))

    def require(self, expected: Mapping[str, Shape], dtypes: Mapping[str, str] | None = None) -> None:
        """Raise CheckpointError unless these tensors are there, of these shapes and of a type that is read.

        `dtypes` names the type of those that are no weights, as safetensors spells it.
        """
        missing = [f"{name} {list(shape)}" for name, shape in expected.items() if name not in self.tensors]
        stored = {name: self.tensors[name] for name in expected if name in self.tensors}
        wrong = [
            f"{name} is {list(tensor.shape)}, not {list(expected[name])}"
            for name, tensor in stored.items()
            if tensor.shape != expected[name]
        ]
        other = dtypes or {}
        unreadable = [
            f"{name} is {tensor.dtype}"
            for name, tensor in stored.items()
            if name not in other and tensor.dtype not in DTYPES
        ]
        unlike = [
            f"{name} is {stored[name].dtype}, not {dtype}"
            for name, dtype in other.items()
            if name in stored and stored[name].dtype != dtype
        ]
        self._refuse("missing tensors", missing)
        self._refuse("tensors of wrong shape", wrong)
        self._refuse("tensors that are not bf16, fp16 or fp32", unreadable)
        self._refuse("tensors of wrong type", unlike)

    def refuse_others(self, expected: Mapping[str, Shape], may_skip: Callable[[str], bool]) -> None:
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
