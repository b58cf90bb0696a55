"""A checkpoint that lies nowhere: its tensors are drawn on the device as they are read."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast
from zlib import crc32

import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.weights import INT4_DEVIATION
from outrider.kernels.weights import FP8_BLOCK, INT4_GROUP
from outrider.model.checkpoint import Checkpoint, StoredTensor
from outrider.model.reader import Meter, Reader
from outrider.model.shard import WHOLE, Shard, num_bytes, parts_to_read, shard_config
from outrider.model.transformer import Transformer
from outrider.model.weights import expected_tensors

FILE = Path("random.safetensors")


@dataclass(frozen=True, kw_only=True)
class RandomFile:
    """Stands in for an opened file of weights that keep activations near one."""

    tensors: dict[str, StoredTensor]
    device: torch.device

    def get_tensor(self, name: str) -> Tensor:
        """Draws a tensor of the name's shape; every rank of a group draws the same."""
        shape, dtype = self.tensors[name].shape, self.tensors[name].dtype
        source = None
        if self.device.type != "meta":
            source = torch.Generator(self.device).manual_seed(crc32(name.encode()))
        if name.endswith("weight_packed"):
            return torch.randint(
                -(2**31), 2**31, shape, generator=source, device=self.device, dtype=torch.int32
            )
        if name.endswith("weight_scale"):
            width = shape[1] * INT4_GROUP
            return torch.full(shape, width**-0.5 / INT4_DEVIATION, device=self.device, dtype=torch.bfloat16)
        if name.endswith("weight_scale_inv"):
            return torch.full(shape, (shape[1] * FP8_BLOCK) ** -0.5, device=self.device)
        if name.endswith("weight_shape"):
            packed = self.tensors[name.removesuffix("weight_shape") + "weight_packed"].shape
            return torch.tensor([packed[0], 8 * packed[1]])
        if name.endswith("e_score_correction_bias"):
            return torch.zeros(shape, device=self.device)
        if len(shape) == 1:
            return torch.ones(shape, device=self.device)
        values = torch.randn(shape, generator=source, device=self.device, dtype=torch.bfloat16)
        if dtype == "F8_E4M3":
            return values.to(torch.float8_e4m3fn)
        return values * (1.0 if "embed" in name else shape[1] ** -0.5)


def random_model(bench: Bench, shard: Shard = WHOLE) -> Transformer:
    """Returns the bench's model, or a rank's shard of it, with random weights, stored as its config says."""
    tensors = {
        name: StoredTensor(file=FILE, name=name, shape=expected.shape, dtype=expected.dtypes[0])
        for name, expected in expected_tensors(bench.model).items()
    }
    file = RandomFile(tensors=tensors, device=bench.device)
    checkpoint = Checkpoint(Path(), {FILE: cast(safe_open, file)}, tensors)
    parts = parts_to_read(bench.model, shard)
    meter = Meter(total=num_bytes(parts, checkpoint), report=None)
    reader = Reader(checkpoint=checkpoint, dtype=bench.dtype, device=bench.device, meter=meter, parts=parts)
    config = shard_config(bench.model, shard.ranks)
    with torch.inference_mode():
        return Transformer(config, reader, bench.kernels, "random", shard)
