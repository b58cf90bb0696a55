"""A small model on disk, loaded once."""

import pytest
import torch

from tests.groups import load_stepper, write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """Loading sets the number of threads of the whole process."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def loaded(model_dir):
    return load_stepper(model_dir)


@pytest.fixture
def stepper(loaded):
    yield loaded
    loaded.forget_all()
