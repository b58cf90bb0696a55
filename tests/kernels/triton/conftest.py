"""The kernels' tests run in the interpreter, whose narrow types are repaired for them."""

from collections.abc import Iterator

import pytest

from tests.interpreter_bf16 import repair


@pytest.fixture(scope="session", autouse=True)
def narrow_types() -> Iterator[None]:
    """Repairs bf16 and casts to FP8."""
    with pytest.MonkeyPatch.context() as patch:
        repair(patch)
        yield
