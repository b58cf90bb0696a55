"""A checkpoint in int4 or FP8, served by the local stack."""

from pathlib import Path
from typing import Any

import pytest

from outrider import Client
from services.local.settings import DEFAULT_MODEL
from tests.stack import running_stack
from tests.unit.model.quantized_models import fp8_section, int4_section, write_quantized


@pytest.mark.parametrize("section", [int4_section(), fp8_section()], ids=["int4", "fp8"])
def test_the_embedded_model_still_adds_when_it_is_quantized(tmp_path: Path, section: dict[str, Any]) -> None:
    write_quantized(DEFAULT_MODEL, tmp_path / "model", section)
    with (
        running_stack("--model", str(tmp_path / "model"), "--drafter", "none") as stack,
        Client(stack.target) as client,
    ):
        answer = client.chat("What is 4785 + 2467?", temperature=0.0).result()
    assert "7252" in answer.text
