"""For tests that compute with tiny models: one thread of PyTorch's, and as many as before when they are over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch computes by one thread in this module: beside other tests two wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
