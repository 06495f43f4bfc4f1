"""Queries generated for a corpus: filtered by BM25, as training rows and as longer documents."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.files import draft_of, fingerprint_of, packed_file, write_text
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.same_text import same_text_key

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.training.generation.query_generation import Generator

log = logging.getLogger("sluice")

CHUNK = 64  # documents that a kill may lose
SEARCHED = 1024  # queries searched together


class Generated(NamedTuple):
    """What a generation made: documents read, queries generated, those that passed the filter."""

    output: Path
    documents: int
    generated: int
    kept: int

    def __str__(self) -> str:
        passed = "" if self.kept == self.generated else f", {self.kept:,} passed the filter"
        return f"{self.output}: {self.generated:,} queries for {self.documents:,} documents{passed}"


def generate_queries(
    generator: Generator,
    dataset: Dataset,
    output: Path,
    *,
    consistency: int | None = None,
    expanded: Path | None = None,
    documents: int | None = None,
) -> Generated:
    """Generate queries for a corpus (its first ``documents``) into training rows, ``bge`` format.

    ``consistency`` k keeps a query only if BM25 over the whole corpus returns its document among
    the first k. ``expanded`` is where the corpus is written again, each text with its queries
    behind it (``corpus.jsonl`` of a BEIR folder). Queries alike, but for case and spacing, have one
    id, so that none of their documents is a negative of another.

    What is generated goes to ``<output>.generated``, from which the same call goes on after a kill.
    """
    if consistency is not None and consistency < 1:
        raise ConfigError(f"consistency: {consistency}, expected 1 or more")
    if documents is not None and documents < 1:
        raise ConfigError(f"documents: {documents}, expected 1 or more")
    for path in (output, *([] if expanded is None else [expanded])):
        draft_of(path)  # a folder is refused before any work
    written = output.with_name(f"{output.name}.generated")
    count = _generate(generator, dataset, written, documents)
    passed = None
    if consistency is not None:
        passed = consistent(_pairs(written), dataset.corpus, consistency)
    total, kept = _write_rows(written, dataset, output, passed, expanded)
    if not kept:
        log.warning("%s: no query is left; a larger consistency keeps more", output)
    written.unlink()
    return Generated(output, count, total, kept)


def consistent(
    pairs: Iterable[tuple[str, str]], documents: Iterable[Document], k: int
) -> list[bool]:
    """Say of each (document id, query) whether BM25 returns the document in the query's top ``k``.

    All are kept where ``k`` is the size of the corpus. (SPTAR, the consistency filter; Peng et al.,
    2023.) Memory: the BM25 index of the corpus.
    """
    from sluice.encoders import BM25Encoder
    from sluice.indexing import InvertedIndex

    rows: dict[str, int] = {}

    def texts() -> Iterator[str]:
        for document in documents:
            rows[document.id] = len(rows)
            yield document.full_text

    encoder = BM25Encoder()
    vectors = encoder.fit_documents(texts())
    if k >= len(rows):
        return [True for _ in pairs]
    index = InvertedIndex()
    index.add(vectors)
    stream, passed = iter(pairs), list[bool]()
    while chunk := list(islice(stream, SEARCHED)):
        hits = index.search(encoder.encode_queries([query for _, query in chunk]), k)
        for found, (document, _) in zip(hits.rows, chunk, strict=True):
            passed.append(rows.get(document, -2) in found)
    return passed


def _generate(generator: Generator, dataset: Dataset, written: Path, most: int | None) -> int:
    """Append the queries of the documents that have none yet; return the number of documents."""
    from sluice.training.generation.inverse_cloze import Passage

    key = fingerprint_of(generator.fingerprint, dataset.name, most)
    done = _begun(written, key)
    size = dataset.corpus.size
    total = size if most is None else most if size is None else min(most, size)
    with progress("generate", total, "documents") as advance, written.open("ab") as stream:
        advance(done)
        rest = islice(dataset.corpus, done, most)
        while chunk := list(islice(rest, CHUNK)):
            found = generator.queries([Passage(d.id, d.title, d.text) for d in chunk])
            for document, queries in zip(chunk, found, strict=True):
                line = {"_id": document.id, "queries": queries}
                stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            stream.flush()
            done += len(chunk)
            advance(len(chunk))
    if not done:
        raise DataError(f"{dataset.name}: the corpus has no documents to generate queries for")
    return done


def _begun(written: Path, key: str) -> int:
    """Return how many documents a killed call has done; a line it broke off is cut away."""
    whole: list[bytes] = []
    if written.exists():
        whole = [line for line in written.read_bytes().splitlines(True) if line.endswith(b"\n")]
        try:
            same = bool(whole) and json.loads(whole[0]) == {"key": key}
        except ValueError:
            same = False
        if not same:
            log.info("%s: of other settings; the generation starts anew", written)
            whole = []
    if not whole:
        whole = [json.dumps({"key": key}).encode() + b"\n"]
    write_text(written, b"".join(whole).decode())
    return len(whole) - 1


def _lines(written: Path) -> Iterator[tuple[str, list[str]]]:
    with written.open(encoding="utf-8") as stream:
        next(stream)
        for line in stream:
            value: dict[str, Any] = json.loads(line)
            yield value["_id"], value["queries"]


def _pairs(written: Path) -> Iterator[tuple[str, str]]:
    return ((name, query) for name, queries in _lines(written) for query in queries)


def _write_rows(
    written: Path,
    dataset: Dataset,
    output: Path,
    passed: Sequence[bool] | None,
    expanded: Path | None,
) -> tuple[int, int]:
    """Write training rows and the longer corpus; return how many queries there were and are."""
    from contextlib import ExitStack

    ids: dict[str, int] = {}
    total = kept = 0
    lines = _lines(written)
    with ExitStack() as files:
        rows = files.enter_context(packed_file(output))
        longer = None if expanded is None else files.enter_context(packed_file(expanded))
        for document in dataset.corpus:
            _, queries = next(lines, ("", []))
            if passed is not None:
                own = passed[total : total + len(queries)]
                total += len(queries)
                queries = [query for query, keep in zip(queries, own, strict=True) if keep]
            else:
                total += len(queries)
            kept += len(queries)
            for query in queries:
                number = ids.setdefault(same_text_key(query), len(ids))
                row = {
                    "query_id": f"generated-{number}", "query": query,
                    "pos": [document.full_text], "neg": [],
                    "pos_ids": [document.id], "neg_ids": [],
                }  # fmt: skip
                if document.full_text:
                    rows.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            if longer is not None:
                longer.write(_expanded(document, queries))
    return total, kept


def _expanded(document: Document, queries: Sequence[str]) -> bytes:
    line: dict[str, Any] = {
        "_id": document.id,
        "title": document.title,
        "text": " ".join([document.text, *queries]).strip(),
    }
    if document.metadata:
        line["metadata"] = dict(document.metadata)
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
