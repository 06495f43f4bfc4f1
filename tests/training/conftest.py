"""The tiny encoders, and one thread, for every test of this folder."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    return importlib.import_module("tiny")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bit-for-bit comparisons of trainings hold at one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
