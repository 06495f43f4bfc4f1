"""Every public name is what it says, in whatever order modules were imported."""

import importlib
import inspect
import pkgutil

import pytest


@pytest.mark.parametrize("package", ["encoders", "indexing", "training", "retrieval"])
def test_public_names_are_not_hidden_by_modules(package: str) -> None:
    home = importlib.import_module(package)
    for module in pkgutil.walk_packages(home.__path__, f"{package}."):
        importlib.import_module(module.name)
    for name in home.__all__:
        assert not inspect.ismodule(getattr(home, name)), f"{package}.{name}"
    with pytest.raises(AttributeError):
        home.no_such_name  # noqa: B018


def test_the_names_of_the_contract_import() -> None:
    from sluice.encoders import BM25Encoder, CrossEncoder, DenseEncoder, SpladeEncoder  # noqa: F401
    from sluice.indexing import FaissIndex, FlatIndex, Hits, InvertedIndex, open_index  # noqa: F401
    from sluice.training import fit  # noqa: F401
