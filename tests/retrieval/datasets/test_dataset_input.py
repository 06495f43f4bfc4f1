"""Bad files: one error each, with the place, what was found and the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.beir import read_documents, read_queries
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import BLOCK, SeenIds

GOOD = b'{"_id": "a", "title": "t", "text": "x"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b'{"_id": "b", "text": \n', r"corpus\.jsonl:2: not JSON .*expected one object"),
        (GOOD + b"[1]\n", r"corpus\.jsonl:2: a JSON list, expected an object"),
        (GOOD + b'{"id": "b", "text": "x"}', r":2: it has 'id' and should have '_id': rename it"),
        (GOOD + b'{"_id": "b", "body": "x"}', r":2: it has 'body' and should have 'text'"),
        (GOOD + b'{"_id": "b", "text": 5}', r":2: 'text' is 5, expected a string"),
        (GOOD + b'{"_id": "b", "text": null}', r":2: 'text' is null, expected a string"),
        (GOOD + b'{"_id": "b", "title": [], "text": ""}', r":2: 'title' is \[\], expected"),
        (GOOD + b'{"_id": "", "text": "x"}', r":2: '_id' is ''; expected a text that is"),
        (GOOD + b'{"_id": true, "text": "x"}', r":2: '_id' is True; expected a text"),
        (GOOD + b"\n" + GOOD, r"corpus\.jsonl:3: id 'a' again, first in .*corpus\.jsonl:1"),
        (b"", r"corpus\.jsonl: empty; expected one JSON object a line"),
        (b"\n \n", r"corpus\.jsonl: empty"),
        (GOOD + b'{"_id": "b", "text": "caf\xe9"}', r":2: byte 25 of the line is not UTF-8"),
        (GOOD + b'{"_id": "b", "text": "\\ud83d"}', r":2: an escape .*ud.* without its partner"),
    ],
)
def test_bad_corpus(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_documents(path))


def test_queries_are_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_bytes(GOOD + GOOD)
    with pytest.raises(DataError, match=r"queries\.jsonl:2: id 'a' again"):
        list(read_queries(path))
    path.write_bytes(b'{"_id": "a"}')
    with pytest.raises(DataError, match=r"queries\.jsonl:1: no field 'text'; the fields are '_id'"):
        list(read_queries(path))


def test_what_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"_id": 7, "title": null, "text": ""}\r\n'
        b'{"_id": "b", "text": "\\ud83d\\ude00"}\n'
    )
    first, second = read_documents(path)
    assert first == Document("7", "", "")
    assert second.text == "\N{GRINNING FACE}"


def test_repetition_far_apart_is_found_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    lines = [f'{{"_id": "d{i}", "text": ""}}' for i in range(4 * BLOCK)]
    lines[2 * BLOCK] = lines[3]
    path.write_text("\n".join(lines))
    read = 0
    with pytest.raises(DataError, match=f":{2 * BLOCK + 1}: id 'd3' again, first in .*:4"):
        for read, _ in enumerate(read_documents(path)):  # noqa: B007
            pass
    assert read < 3 * BLOCK + 1


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 7))
def test_seen_ids_finds_exactly_the_repetitions(numbers: list[int], every: int) -> None:
    seen, found = SeenIds(), []
    for place, number in enumerate(numbers):
        found += seen.add(str(number), place)
        if place % every == 0:
            found += seen.suspects()
    found += seen.suspects()
    expected = [(str(n), i) for i, n in enumerate(numbers) if n in numbers[:i]]
    assert found == expected


def test_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD * 100)[:-20])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz:\d+: cannot be read any further"):
        list(read_documents(path))


def test_qrels_of_other_queries(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_bytes(GOOD)
    (tmp_path / "qrels" / "test.tsv").write_text("q1\td\t1\nq2\td\t1\n")
    with pytest.raises(
        DataError, match=r"test\.tsv: none of its 2 judged queries \(q1, q2\) is in .*queries"
    ):
        _ = load_dataset(tmp_path).queries
    with pytest.raises(DataError, match=r"no corpus\.jsonl or corpus\.jsonl\.gz"):
        list(load_dataset(tmp_path).corpus)


def test_a_line_nested_too_deep_is_named(tmp_path: Path) -> None:
    from sluice.retrieval.documents.json_files import read_objects

    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100_000 + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"deep\.jsonl:1: not JSON"):
        list(read_objects(deep, "{}"))
