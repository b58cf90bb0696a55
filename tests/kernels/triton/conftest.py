"""The kernels' tests run in the interpreter, whose narrow types are repaired for them."""

from collections.abc import Iterator

import pytest
import torch

from tests.interpreter_bf16 import repair


@pytest.fixture(scope="session", autouse=True)
def narrow_types() -> Iterator[None]:
    """Repairs bf16 and casts to FP8."""
    with pytest.MonkeyPatch.context() as patch:
        repair(patch)
        yield


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """Fills what torch allocates with NaN: an element that a kernel does not write shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
