"""What loading refuses, so that a worker that cannot work says why in one line."""

from pathlib import Path
from typing import Any

import pytest

from outrider.rpc.config import ConfigError
from services.worker.config import Config
from services.worker.load import load

TINY = Path(__file__).parents[3] / "models" / "tiny"


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        ({"device": "banana"}, "OUTRIDER_WORKER_DEVICE"),
        ({"num_blocks": 10**11}, "OUTRIDER_WORKER_NUM_BLOCKS"),
        ({"max_model_len": 10**6}, "OUTRIDER_WORKER_MAX_MODEL_LEN"),
        ({"backend": "abacus"}, "OUTRIDER_WORKER_BACKEND"),
    ],
)
def test_what_is_not_to_be_had_is_refused_by_its_variable(setting: dict[str, Any], variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        load(Config(model_dir=TINY, **setting), lambda: False)
