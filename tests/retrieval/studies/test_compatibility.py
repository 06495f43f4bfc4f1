from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Retriever, evaluate, load_dataset
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.studies.upgrades import compatibility_matrix


class Dim(WordEncoder):
    """The same document vectors, and queries that are read only up to a word."""

    def __init__(self, words: int, dim: int = 64) -> None:
        super().__init__(dim)
        self.words = words

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.encode_documents([" ".join(text.split()[: self.words]) for text in texts])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return load_dataset(write_beir(tmp_path / "beir"))


@contextmanager
def retrievers(dataset: Dataset, **encoders: object) -> Iterator[dict[str, Retriever]]:
    yield {
        name: Retriever.build(encoder, dataset.corpus, name=name)  # type: ignore[arg-type]
        for name, encoder in encoders.items()
    }


def test_cells_are_what_each_query_encoder_finds_in_each_index(dataset: Dataset) -> None:
    with retrievers(dataset, old=Dim(1), new=Dim(3)) as built:
        found = compatibility_matrix(built, dataset, "RR@10")
        for name, retriever in built.items():  # on its own index, as searched by itself
            place = found.names.index(name)
            own = evaluate(retriever, dataset, ["RR@10"]).mean["RR@10"]
            assert found.matrix[place][place] == own
    (old_old, old_new), (new_old, new_new) = found.matrix
    assert new_old == new_new
    assert old_new == old_old
    assert new_old is not None
    assert old_old is not None
    assert new_old > old_old
    assert found.average == 1.0
    with retrievers(dataset, old=Dim(3), new=Dim(1)) as built:
        assert compatibility_matrix(built, dataset, "RR@10").average == 0.0


def test_identical_models_are_not_compatible_by_the_strict_definition(dataset: Dataset) -> None:
    with retrievers(dataset, a=Dim(2), b=Dim(2), c=Dim(2)) as built:
        found = compatibility_matrix(built, dataset)
    assert len({value for row in found.matrix for value in row}) == 1
    assert found.average == 0.0
    assert not found.impossible


def test_a_cell_that_cannot_be_is_none_and_said(dataset: Dataset) -> None:
    with retrievers(dataset, old=Dim(1), wide=Dim(3, 32), new=Dim(3), bm25=BM25Encoder()) as built:
        found = compatibility_matrix(built, dataset, "RR@10")
        text = found.table().to_markdown()
    assert found.matrix[1][0] is None
    assert found.matrix[3][0] is None
    assert found.impossible["wide", "old"] == "width 32 for 64"
    assert found.impossible["bm25", "old"] == "csr_array for an index of ndarray"
    assert found.average == 1 / 6  # new on old, of six pairs
    assert "| wide | - |" in text
    assert "wide on old: width 32 for 64" in text
    with pytest.raises(ConfigError, match="two retrievers"):
        compatibility_matrix({"bm25": built["bm25"]}, dataset)
