"""Published checkpoints on this machine: every hash, and the vectors of sentence-transformers."""

from typing import Any

import numpy as np
import pytest
from fetched import fetched

from sluice.encoders.foundation.disk.files import file_hash
from sluice.encoders.foundation.published.table import Published, published
from sluice.encoders.model_files.registry import LANGUAGE_MODEL, kind_of, open_encoder

TEXTS = ["The river carries gold.", "sluice gates, " * 300, "A question about retrieval?"]


@pytest.mark.thorough
@pytest.mark.parametrize("row", published().values(), ids=lambda row: row.name)
def test_what_was_fetched_is_what_was_published(row: Published) -> None:
    folder = fetched(row.name)
    for name, packed in {} if row.convert else row.files.items():
        assert file_hash(folder / name) == packed.sha256, name
    if kind_of(folder) == LANGUAGE_MODEL:
        assert row.type == "generative"
        return
    assert kind_of(folder) == row.type
    theirs: Any = pytest.importorskip("sentence_transformers")
    sparse = row.type == "splade"
    reference = (theirs.SparseEncoder if sparse else theirs.SentenceTransformer)(
        str(folder), device="cpu"
    )
    reference.float()  # wordllama's vectors are saved in 16 bits, in which theirs would be added up
    expected = reference.encode_document(TEXTS, show_progress_bar=False)
    found = open_encoder(folder).encode_documents(TEXTS)
    if sparse:
        expected, found = expected.to_dense().numpy(), found.toarray()
    np.testing.assert_allclose(found, expected, atol=1e-5)
