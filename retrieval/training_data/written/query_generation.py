"""Generates queries for a corpus, filters them by BM25, and writes training rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.disk.files import fingerprint_of, packed_file, writable, write_text
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.training_data.written.written_corpus import (
    CHUNK,
    corpus_line,
    example_line,
    json_line,
    least,
)

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.documents.document import Document
    from sluice.training.generation.query_generation import Generator

log = logging.getLogger("sluice")

SEARCHED = 1024  # queries searched together


class Generated(NamedTuple):
    """Documents read, queries generated, and queries that passed the filter."""

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
    consistency: Annotated[
        int | None, "Keep a query only if BM25 ranks its document among the first N."
    ] = None,
    expanded: Annotated[
        Path | None, "Also write the corpus, each text expanded by its queries."
    ] = None,
    documents: Annotated[int | None, "Only the first N documents."] = None,
    only: Collection[str] | None = None,
) -> Generated:
    """Generate queries for a corpus (its first ``documents``) into training rows, ``bge`` format.

    ``only`` are the ids of the documents that get queries.

    ``consistency`` k keeps a query only if BM25 over the whole corpus returns its document among
    the first k. ``expanded`` is where the corpus is written again, each text followed by its
    queries (``corpus.jsonl`` of a BEIR folder). Queries that differ only in case and spacing have
    one id, so that no document of one becomes a negative of another.

    Generated queries go to ``<output>.generated``; the same call after a kill continues from there.
    """
    for name, number in (("consistency", consistency), ("documents", documents)):
        if number is not None and number < 1:
            raise ConfigError(f"{name}: {number}, expected 1 or more")
    for path in (output, *([] if expanded is None else [expanded])):
        writable(path)  # a folder is refused before any work
    written = output.with_name(f"{output.name}.generated")
    count = _generate(generator, dataset, written, documents, only)
    passed = None
    if consistency is not None:
        passed = consistent(_pairs(written), dataset.corpus, consistency)
    total, rows = _write_rows(written, dataset, output, passed, expanded, only)
    if not rows:
        log.warning("%s: no query passed the filter; a larger consistency keeps more", output)
    written.unlink()
    return Generated(output, count, total, rows)


def consistent(
    pairs: Iterable[tuple[str, str]], documents: Iterable[Document], k: int
) -> list[bool]:
    """Return for each (document id, query) whether BM25 has the document in the query's top ``k``.

    The consistency filter of SPTAR (Peng et al., 2023). All pass where ``k`` is the size of the
    corpus. Memory: the BM25 index of the corpus.
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
        for top, (document, _) in zip(hits.rows, chunk, strict=True):
            passed.append(rows.get(document, -2) in top)
    return passed


def _generate(
    generator: Generator,
    dataset: Dataset,
    written: Path,
    most: int | None,
    only: Collection[str] | None,
) -> int:
    """Generate the queries that are still missing; return the number of documents."""
    from sluice.training.generation.inverse_cloze import Passage

    key = fingerprint_of(
        generator.fingerprint, dataset.name, most, *([] if only is None else [sorted(only)])
    )
    done = _begun(written, key)
    total = least(dataset.corpus.size if only is None else len(only), most)
    with progress("generate", total, "documents") as advance, written.open("ab") as stream:
        advance(done)
        rest = islice(_asked_for(dataset, only), done, most)
        while chunk := list(islice(rest, CHUNK)):
            generated = generator.queries([Passage(d.id, d.title, d.text) for d in chunk])
            for document, queries in zip(chunk, generated, strict=True):
                stream.write(json_line({"_id": document.id, "queries": queries}))
            stream.flush()
            done += len(chunk)
            advance(len(chunk))
    if not done:
        raise DataError(f"{dataset.name}: the corpus has no documents to generate queries for")
    return done


def _asked_for(dataset: Dataset, only: Collection[str] | None) -> Iterator[Document]:
    return (each for each in dataset.corpus if only is None or each.id in only)


def _begun(written: Path, key: str) -> int:
    """Return how many documents a killed call has done; cut off an incomplete last line."""
    lines: list[bytes] = []
    if written.exists():
        lines = [line for line in written.read_bytes().splitlines(True) if line.endswith(b"\n")]
        try:
            same = bool(lines) and json.loads(lines[0]) == {"key": key}
        except ValueError:
            same = False
        if not same:
            log.info("%s: made with other settings; generation starts again", written)
            lines = []
    if not lines:
        lines = [json_line({"key": key})]
    write_text(written, b"".join(lines).decode())
    return len(lines) - 1


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
    only: Collection[str] | None,
) -> tuple[int, int]:
    """Write training rows and the expanded corpus; return how many queries there were and are."""
    from contextlib import ExitStack

    ids: dict[str, int] = {}
    total = count = 0
    lines = _lines(written)
    with ExitStack() as files:
        rows = files.enter_context(packed_file(output))
        longer = None if expanded is None else files.enter_context(packed_file(expanded))
        for document in dataset.corpus:
            in_selection = only is None or document.id in only
            _, queries = next(lines, ("", [])) if in_selection else ("", [])
            first, total = total, total + len(queries)
            if passed is not None:
                own = passed[first:total]
                queries = [query for query, keep in zip(queries, own, strict=True) if keep]
            count += len(queries)
            for query in queries:
                name = f"generated-{ids.setdefault(same_text_key(query), len(ids))}"
                if document.full_text:
                    rows.write(example_line(name, query, document))
            if longer is not None:
                longer.write(corpus_line(document, " ".join([document.text, *queries])))
    return total, count
