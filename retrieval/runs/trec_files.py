"""Reads and writes runs (TREC, Tevatron) and reads qrels (TREC, BEIR).

Fields of a run are separated by any ASCII white space. Runs go through pyarrow's parser, several
million lines a second; what it refuses is read again line by line to find the line at fault.
"""

from __future__ import annotations

import codecs
import itertools
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.bounded_input import (
    GZIP_MAGIC,
    LONGEST,
    check_file,
    open_bytes,
    stream_of,
    too_long,
)
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.json_files import all_lines
from sluice.retrieval.runs.columns import RunColumns, columns_of, has_repeats

log = logging.getLogger("sluice")

Qrels: TypeAlias = dict[str, dict[str, int]]  # query id -> {document id: grade}
Judgement: TypeAlias = tuple[int, str, str, int]  # number, query id, document id, grade

RUN_FIELDS = {
    6: ("query", "q0", "document", "rank", "score", "tag"),  # TREC
    3: ("query", "document", "score"),  # Tevatron
}
RUN_EXPECTED = "6 columns 'query Q0 document rank score tag' or 3 columns 'query document score'"
GRADE = re.compile(r"[+-]?[0-9]{1,9}")
QRELS_EXPECTED = "4 columns 'query 0 document grade' or 3 columns 'query-id corpus-id score'"
_WHITE = b"\t\v\f\r"
_SCAN = 1 << 18  # bytes looked at together
_BLOCK = 1 << 20  # bytes parsed together
BYTE_ORDER_MARK = codecs.BOM_UTF8.decode()
UNREADABLE = (OSError, EOFError, zlib.error)


class _Rows(NamedTuple):
    queries: list[str]
    codes: NDArray[np.int32]  # [rows], places in queries
    documents: Any  # pyarrow string array [rows]
    scores: NDArray[np.float32]  # [rows]
    mixed: bool  # whether the first and the last line have different tags


def read_run(path: Path) -> RunColumns:
    """Read a run file, gzipped or not, ordered by score then document id.

    The rank column is not looked at. Raises ``DataError`` naming file and line for a wrong number
    of columns, a score that is not a finite number, a document twice in a query, text that is not
    UTF-8, and for an empty file. Where the last line has another tag than the first, as when runs
    are put one after the other, a warning names the line of the change.
    """
    rows = _parsed(path)
    if rows is None:
        rows = _read_lines(path)
    if rows.mixed:
        _warn_of_tags(path)
    columns = columns_of(rows.queries, rows.codes, rows.documents, rows.scores)
    if not np.isfinite([rows.scores.min(), rows.scores.max()]).all() or has_repeats(columns):
        _read_lines(path)  # which names the line
    return columns


def read_qrels(path: Path) -> Qrels:
    """Read relevance judgements, gzipped or not: ``query id -> {document id: grade}``.

    BEIR's three columns, with or without their header, or TREC's four. A line with tabs is split at
    these, so that ids may hold spaces; another at ASCII white space. In Parquet, the columns
    ``query-id``, ``corpus-id`` and perhaps ``score``. Every verb reads every qrels file here, so
    that no two of them score by different grades. See ``qrels_of`` for pairs judged twice. Raises
    ``DataError`` naming file and line for a wrong number of columns, an empty id, a grade that is
    not a whole number, text that is not UTF-8, and for a file without judgements.
    """
    if path.suffix == ".parquet":
        return qrels_of(lambda: _rows_of(path), lambda row: f"{path}: row {row}", str(path))
    return qrels_of(
        lambda: _judgements(path),
        lambda number: f"{path}:{number}",
        str(path),
        f"; expected lines of {QRELS_EXPECTED}",
    )


def qrels_of(
    entries: Callable[[], Iterable[Judgement]],
    place: Callable[[int], str],
    source: str,
    expected: str = "",
) -> Qrels:
    """Collect judgements as ``query id -> {document id: grade}``; ``place`` names one by number.

    A pair judged twice alike is counted once, with a warning. A pair judged twice differently is a
    ``DataError``, as in trec_eval: either grade would be a guess, and one that changes every
    number. The same for a ``source`` without judgements; ``expected`` says what it should hold.
    """
    qrels: Qrels = {}
    again: list[int] = []  # the judgements that repeat an earlier one
    for number, query, document, grade in entries():
        judged = qrels.setdefault(query, {})
        earlier = judged.get(document)
        judged[document] = grade
        if earlier == grade:
            again.append(number)
        elif earlier is not None:
            first = next(n for n, *pair, _ in entries() if pair == [query, document])
            raise DataError(
                f"{place(number)}: document {document!r} of query {query!r} has grade {grade}, "
                f"and {earlier} in {place(first)}; keep one of the two"
            )
    if not qrels:
        raise DataError(f"{source}: no judgements{expected}")
    if again:
        count = f"{len(again):,} such judgement{'' if len(again) == 1 else 's'}"
        log.warning(
            "%s: judged before, with the same grade (%s); counted once", place(again[0]), count
        )
    return qrels


def _judgements(path: Path) -> Iterator[Judgement]:
    """Yield the judgements of a file with their line numbers."""
    columns = 0
    for number, line in all_lines(path):
        fields = _qrels_fields(line)
        named = ("query-id", "query_id") if len(fields) == 3 else ("query-id", "query_id", "qid")
        if not fields or (columns == 0 and fields[0].lower() in named):
            continue
        if len(fields) != (columns or len(fields)) or len(fields) not in (3, 4):
            raise DataError(
                f"{path}:{number}: {_counted(fields)}; expected {QRELS_EXPECTED}, "
                "the same in every line"
            )
        query, document, grade = fields[0], fields[-2], _grade(path, number, fields[-1], columns)
        columns = len(fields)
        if not query or not document:
            raise DataError(f"{path}:{number}: an empty id; expected {QRELS_EXPECTED}")
        yield number, query, document, grade


def _rows_of(path: Path) -> Iterator[Judgement]:
    """Yield the judgements of a Parquet file with their rows; without grades, all are 1."""
    from sluice.retrieval.documents.readers.tables import open_table

    for number, (place, row) in enumerate(open_table(path).rows()):
        query, document = row.get("query-id"), row.get("corpus-id")
        grade = row.get("score", 1)
        if not (isinstance(query, str) and isinstance(document, str) and query and document):
            found = f"{place}: query-id {query!r:.60}, corpus-id {document!r:.60}"
            raise DataError(f"{found}; expected texts in columns of these names")
        if isinstance(grade, bool) or not isinstance(grade, int | float) or grade % 1:
            raise DataError(f"{place}: score {grade!r:.60} is not a whole number")
        yield number, query, document, int(grade)


def _qrels_fields(line: str) -> list[str]:
    """Return the columns of a line: at tabs where these make a judgement, else at white space."""
    fields = line.rstrip(" \t\r\n\v\f").split("\t")
    if len(fields) == 4:  # TREC's: an id there holds no white space, so what surrounds it pads
        return [field.strip() for field in fields]
    return fields if len(fields) == 3 else _fields(line)


def _grade(path: Path, number: int, written: str, columns: int) -> int:
    if not GRADE.fullmatch(written.strip()):
        hint = "" if columns else "; a header line begins with 'query-id'"
        raise DataError(
            f"{path}:{number}: grade {written!r} is not a whole number; write 0 for not relevant, "
            f"1 or more for relevant{hint}"
        )
    return int(written)


def run_text(
    queries: Iterable[tuple[str, list[str], NDArray[np.float32]]], tag: str
) -> Iterable[str]:
    """Yield the TREC text of one query after another; scores are printed so that they read back.

    The shortest digits of a float32 may land on its neighbour when read as a double first, as
    trec_eval does; such scores are written in full.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for query, doc_ids, scores in queries:
        _check_writable(query, "query")
        printed: list[str] = pc.cast(pa.array(scores), pa.string()).to_pylist()
        read = np.array([float(text) for text in printed]).astype(np.float32)
        for place in np.flatnonzero(read != scores).tolist():
            printed[place] = repr(float(scores[place]))
        lines = [
            f"{query} Q0 {document} {rank} {score} {tag}\n"
            for rank, (document, score) in enumerate(zip(doc_ids, printed, strict=True), 1)
        ]
        # One look at all ids: white space inside one would make another number of words.
        if len("\n".join(doc_ids).split()) != len(doc_ids) or not all(doc_ids):
            for document in doc_ids:
                _check_writable(document, "document")
        yield "".join(lines)


def _parsed(path: Path) -> _Rows | None:
    """Parse all lines at once; None if anything is out of order."""
    import pyarrow as pa
    from pyarrow import csv

    check_file(path)
    line, separator = _first_line(path), b" "
    ends = [line, line]  # the first line and the last one
    if _is_plain(path, line):
        separator = b"\t" if b"\t" in line else b" "
        source = pa.OSFile(str(path))  # in blocks: the text is never all in memory
        ends[1] = _last_line(path)
    else:
        blocks = _plain_blocks(path, ends)
        try:
            begin = next(blocks, b"")
        except UNREADABLE:
            return None
        if begin.startswith(codecs.BOM_UTF8):  # a second one, which the parser would drop
            return None
        source = stream_of(itertools.chain([begin], blocks))
    names = RUN_FIELDS.get(len(ends[0].split()))
    if names is None:
        return None
    types = {
        "query": pa.dictionary(pa.int32(), pa.string()),
        "document": pa.string(),
        "score": pa.float64(),
    }
    pool = pa.system_memory_pool()  # which keeps freed blocks: Arrow's own returns them, to be
    try:  # cleared again, a third of all time on some machines
        table = csv.read_csv(
            source,
            read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK),
            parse_options=csv.ParseOptions(delimiter=separator.decode(), quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[]
            ),
            memory_pool=pool,
        )
        queries = table["query"].unify_dictionaries()
        documents = table["document"]
        if documents.nbytes >= 1 << 31:
            documents = documents.cast(pa.large_string())
        documents = documents.combine_chunks(memory_pool=pool)
    except (pa.ArrowInvalid, *UNREADABLE):
        return None
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in queries.chunks])
    mixed = ends[0].split()[5:] != ends[1].split()[5:]
    with np.errstate(over="ignore"):
        parts = [chunk.to_numpy() for chunk in table["score"].chunks]
        scores = np.concatenate(parts, dtype=np.float32, casting="unsafe")
    return _Rows(queries.chunk(0).dictionary.to_pylist(), codes, documents, scores, mixed)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.readline(_SCAN)
    except OSError:  # which reading line by line reports
        return b""


def _last_line(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _SCAN))
        return stream.read().rstrip().rpartition(b"\n")[2]


def _is_plain(path: Path, line: bytes) -> bool:
    """Return whether single spaces (or tabs, if line 1 has one) part fields, newlines lines."""
    if line[:1] <= b" " or line[:2] == GZIP_MAGIC or line.startswith(codecs.BOM_UTF8):
        return False
    separator = 9 if b"\t" in line else 32
    store = bytearray(b"@") * (_SCAN + 1)  # the last byte of the block before, then the block
    block = np.frombuffer(store, dtype=np.uint8)
    with path.open("rb") as stream:
        while count := stream.readinto(memoryview(store)[1:]):
            part = block[: count + 1]
            white = part <= 32
            strange = white & (part != separator) & (part != 10)
            strange[0] = False  # was looked at with its own block
            strange[1:] |= white[1:] & white[:-1]
            if bool(strange.any()):
                return False
            store[0] = store[count]
    return True


def _plain_blocks(path: Path, ends: list[bytes]) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines as ``_plain`` writes them; notes the ``ends``."""
    with open_bytes(path) as stream:
        begun = False
        while block := stream.read(_BLOCK):
            rest = stream.readline(LONGEST + 1)
            if len(rest) > LONGEST:
                raise too_long(f"{path}: a line")
            block = _plain((block + rest).removeprefix(b"" if begun else codecs.BOM_UTF8))
            if not begun:
                ends[0] = block[: block.find(b"\n") + 1] or block
            ends[1] = block[block.rstrip().rfind(b"\n") + 1 :].strip() or ends[1]
            begun = True
            yield block


def _plain(data: bytes) -> bytes:
    """Part fields by one space and lines by one newline; as many lines as before."""
    data = data.translate(bytes.maketrans(_WHITE, b" " * len(_WHITE)))
    data = re.sub(rb"  +", b" ", data).replace(b" \n", b"\n").replace(b"\n ", b"\n")
    return data.strip(b" ")


def _read_lines(path: Path) -> _Rows:
    """Parse line by line: slow and exact.

    ``DataError`` names the first line with an unusable score or with a document that its query has
    already.
    """
    import pyarrow as pa

    places: dict[str, int] = {}
    codes: list[int] = []
    documents: list[str] = []
    scores: list[float] = []
    tags: list[str] = []
    seen: set[tuple[int, str]] = set()
    columns = 0
    for number, line in all_lines(path):
        fields = _fields(line)
        if not fields:
            continue
        columns = columns or len(fields)
        if len(fields) != columns or columns not in RUN_FIELDS:
            raise DataError(
                f"{path}:{number}: {_counted(fields)}; expected {RUN_EXPECTED}, "
                "the same in every line"
            )
        codes.append(places.setdefault(fields[0], len(places)))
        documents.append(fields[2 if columns == 6 else 1])
        scores.append(_score(path, number, fields[4 if columns == 6 else 2]))
        tags += fields[5:]
        pair = codes[-1], documents[-1]
        if pair in seen:
            raise DataError(
                f"{path}:{number}: document {pair[1]!r} is listed twice for query {fields[0]!r}; "
                "expected each document once per query"
            )
        seen.add(pair)
    if not codes:
        raise DataError(f"{path}: the file is empty; expected lines of {RUN_EXPECTED}")
    return _Rows(
        list(places),
        np.array(codes, dtype=np.int32),
        pa.array(documents, pa.large_string()),
        np.array(scores, dtype=np.float32),
        tags[:1] != tags[-1:],
    )


def _warn_of_tags(path: Path) -> None:
    """Warn of the first line whose tag is not that of the lines before."""
    first = ""
    for number, line in all_lines(path):
        tag = _fields(line)[5:]
        first = first or "".join(tag)
        if tag and tag[0] != first:
            log.warning(
                "%s:%d: tag %r, the lines before have %r; read as one run: check that the file is "
                "not two runs together",
                path, number, tag[0], first,
            )  # fmt: skip
            return


def _score(path: Path, number: int, written: str) -> float:
    try:
        score = float(written) if "_" not in written else math.nan
    except ValueError:
        score = math.nan
    if not abs(score) <= float(np.finfo(np.float32).max):
        raise DataError(
            f"{path}:{number}: score {written!r} is not a finite number of float32, "
            "which is what trec_eval reads"
        )
    return score


def _fields(line: str) -> list[str]:
    """Split at ASCII white space only, as trec_eval does: ids may hold other spaces."""
    return line.split() if line.isascii() else [p.decode() for p in line.encode().split()]


def _counted(fields: list[str]) -> str:
    return "1 column" if len(fields) == 1 else f"{len(fields)} columns"


def _check_writable(name: str, kind: str) -> None:
    if len(name.encode().split()) != 1 or name.encode().split()[0] != name.encode():
        raise DataError(
            f"{kind} id {name!r:.200} is empty or holds white space, which a TREC file cannot "
            "hold; rename it"
        )
    if kind == "query" and name.startswith(BYTE_ORDER_MARK):
        raise DataError(
            f"query id {name!r:.80} begins with a byte order mark (U+FEFF), which is dropped where "
            "it begins a file; rename it"
        )
