"""Fixtures of the retrieval tests: the command line, and two retrievers over the small world."""

import pytest
from command_line import Call, joined
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Retriever


@pytest.fixture
def sluice(shell: Call) -> Call:
    """The command line, with the lines of an error joined by semicolons."""

    def call(*words: object) -> tuple[int, str, str]:
        code, out, err = shell(*words)
        return code, out, joined(err)

    return call


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), documents(), name="bm25")


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(WordEncoder(), documents(), name="dense")
