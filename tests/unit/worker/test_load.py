"""What loading refuses, so that a worker that cannot work says why in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.kernels.triton.launch import DoesNotFit, Launch
from outrider.model.draft_head import FeatureProjection
from outrider.model.reader import Reader
from outrider.model.transformer import Transformer
from outrider.rpc.config import ConfigError
from services.worker import step
from services.worker.config import Config
from services.worker.load import load
from tests.unit.model.random_models import interpreted_config, write_checkpoint

TINY = Path(__file__).parents[3] / "models" / "tiny"


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        ({"device": "banana"}, "OUTRIDER_WORKER_DEVICE"),
        ({"num_blocks": 10**11}, "OUTRIDER_WORKER_NUM_BLOCKS"),
        ({"max_model_len": 10**6}, "OUTRIDER_WORKER_MAX_MODEL_LEN"),
        ({"backend": "abacus"}, "OUTRIDER_WORKER_BACKEND"),
        ({"block_size": 48}, "OUTRIDER_WORKER_BLOCK_SIZE is 48, .* must divide 128"),
    ],
)
def test_what_is_not_to_be_had_is_refused_by_its_variable(setting: dict[str, Any], variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        load(Config(model_dir=TINY, **setting), lambda: False)


def no_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_weights_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "__call__", no_memory)
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_MODEL_DIR: the weights do not fit"):
        load(Config(model_dir=TINY), lambda: False)


def test_a_step_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(
        model_dir=write_checkpoint(tmp_path, interpreted_config()), backend="triton", num_blocks=2
    )
    monkeypatch.setattr(Transformer, "compute", no_memory)
    with pytest.raises(ConfigError, match="_GRAPH_NUM_ROWS: they leave no memory"):
        load(config, lambda: False)


def test_a_draft_head_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureProjection, "load", no_memory)
    with pytest.raises(ConfigError, match="OUTRIDER_WORKER_HEAD_DIR: its weights do not fit"):
        load(Config(model_dir=TINY, head_dir=TINY), lambda: False)


def test_tokens_that_cannot_be_chosen_for_lack_of_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "choose", no_memory)
    with pytest.raises(ConfigError, match=r"_MAX_NUM_BATCHED_TOKENS .* leave no memory for a step"):
        load(Config(model_dir=TINY), lambda: False)


def test_a_kernel_too_large_for_the_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(launch: Launch) -> None:
        raise DoesNotFit(300_000, 232_448, "shared memory")

    config = Config(
        model_dir=write_checkpoint(tmp_path, interpreted_config()), backend="triton", num_blocks=2
    )
    monkeypatch.setattr(Launch, "run", run)
    with pytest.raises(ConfigError, match=r"OUTRIDER_WORKER_DEVICE: a kernel does not fit cpu: .* 300000"):
        load(config, lambda: False)
