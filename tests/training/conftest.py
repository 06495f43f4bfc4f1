"""The tiny encoders, for every test of this folder."""

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    return importlib.import_module("tiny")
