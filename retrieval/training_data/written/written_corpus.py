"""What the writers share: files of JSON lines, and a model's answers about a corpus's documents."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.disk.files import writable
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sluice.encoders.rerankers.language_model import Template
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.stages.transforms.writer import Limits, Writer

ENDINGS: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CHUNK: Final = 64  # documents asked about together


def check_output(output: Path, documents: int | None = None) -> None:
    """Raise ``ConfigError`` unless ``output`` can be a file of JSON lines, of so many documents."""
    if not output.name.endswith(ENDINGS):
        raise ConfigError(f"{output}: JSON lines are written; end the name in {ENDINGS[0]}")
    writable(output)
    if documents is not None:
        whole_number(documents, "documents", 1)


def caching_writer(model: Any, limits: Limits, output: Path, task: str) -> Writer:
    """Return what asks ``model``, its answers in ``<output>.answers.sqlite`` unless limits say."""
    from sluice.retrieval.stages.transforms.writer import Writer

    if limits.cache is None:
        limits = limits._replace(cache=str(output.with_name(f"{output.name}.answers.sqlite")))
    return Writer(model, limits, task)


def answers(
    writer: Writer,
    template: Template,
    values: Mapping[str, Any],
    dataset: Dataset,
    documents: int | None,
) -> Iterator[tuple[Document, str]]:
    """Yield the corpus's first ``documents`` with the answer to each, "" for one without a text.

    ``values`` fill the template beside the ``text``. ``DataError`` for a corpus without documents.
    """
    rest, read = islice(dataset.corpus, documents), 0
    total = least(dataset.corpus.size, documents)
    with progress(writer.name, total, "documents") as advance:
        while chunk := list(islice(rest, CHUNK)):
            texts = [each.full_text for each in chunk if each.full_text.strip()]
            written = iter(writer.write([template.fill({"text": t, **values}) for t in texts]))
            for document in chunk:
                yield document, next(written) if document.full_text.strip() else ""
            read += len(chunk)
            advance(len(chunk))
    if not read:
        raise DataError(f"{dataset.name}: the corpus has no documents to {writer.name}")


def least(*numbers: int | None) -> int | None:
    """Return the least of the numbers that are known."""
    return min((number for number in numbers if number is not None), default=None)


def json_line(value: Mapping[str, Any]) -> bytes:
    """Return an object as a line of JSON."""
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def corpus_line(document: Document, text: str) -> bytes:
    """Return a document with another text as a line of ``corpus.jsonl``."""
    line = {"_id": document.id, "title": document.title, "text": text.strip()}
    return json_line(line | ({"metadata": dict(document.metadata)} if document.metadata else {}))


def example_line(name: str, query: str, document: Document, **more: Any) -> bytes:
    """Return a training row of a query that one document answers."""
    row = {
        "query_id": name, "query": query,
        "pos": [document.full_text], "neg": [], "pos_ids": [document.id], "neg_ids": [],
    }  # fmt: skip
    return json_line(row | more)
