"""Same numbers in every run, and one thread unless asked: parallel regions cost more than tiny tensors save."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads(calm: None) -> None:
    """For tests of what must not depend on how work is divided."""
    torch.set_num_threads(2)
