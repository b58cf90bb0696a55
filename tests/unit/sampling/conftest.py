"""Rows this small gain nothing from a second thread."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
