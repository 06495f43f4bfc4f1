"""The document store against a list and a dict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sluice.encoders.foundation.disk.generations
from sluice.encoders.foundation.disk.generations import pin_generation, verify
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.retrieval.documents import segment as document_segment, store as document_store
from sluice.retrieval.documents.document import NOTHING, Document
from sluice.retrieval.documents.segment import Segment
from sluice.retrieval.documents.store import open_documents, write_documents

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.lists(texts, max_size=3)
)
metadata = st.just(NOTHING) | st.dictionaries(st.sampled_from(["lang", "year", "é", " "]), values)
documents = st.lists(
    st.builds(Document, texts.filter(bool), texts, texts, metadata),
    max_size=80,
    unique_by=lambda d: d.id,
)


def some(size: int, start: int = 0) -> list[Document]:
    return [
        Document(f"d{i}", f"title {i}", f"text {i} " * (i % 5)) for i in range(start, start + size)
    ]


@pytest.mark.thorough
@settings(derandomize=True, max_examples=30, deadline=None)
@given(documents)
def test_round_trip(given_documents: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder), given_documents)
        store = open_documents(folder)
        ids = [document.id for document in given_documents]
        assert list(store) == given_documents
        kinds = [{k: repr(v) for k, v in d.metadata.items()} for d in given_documents]
        assert [{k: repr(v) for k, v in d.metadata.items()} for d in store] == kinds
        assert len(store) == store.rows_total == len(ids)
        assert store.ids(range(len(ids))) == ids
        assert store.rows(ids).tolist() == list(range(len(ids)))
        backwards = list(range(len(ids)))[::-1]
        assert store.documents(backwards) == given_documents[::-1]
        assert store.texts(ids) == [document.full_text for document in given_documents]
        assert store.row("\0 nobody has this id, which is long") is None


changes = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 30), max_size=6, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 30), max_size=6, unique=True)),
        st.tuples(st.just("update"), st.lists(st.integers(0, 30), max_size=6, unique=True)),
        st.tuples(st.just("compact"), st.just([])),
    ),
    max_size=7,
)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(changes)
def test_changes_equal_a_model(steps: list[tuple[str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = write_documents(folder, [])
        rows: list[Document | None] = []
        for version, (change, numbers) in enumerate(steps):
            live = {d.id: row for row, d in enumerate(rows) if d is not None}
            names = [f"d{number}" for number in numbers]
            if change == "append":
                added = [
                    Document(name, str(version), name * 9, {"v": version} if version % 2 else {})
                    for name in names
                ]
                if any(name in live for name in names):
                    with pytest.raises(DataError, match="is already there"):
                        store.append(added)
                else:
                    expected = list(range(len(rows), len(rows) + len(added)))
                    assert store.append(added).tolist() == expected
                    rows += added
            elif change == "update":
                added = [Document(name, "new", "", {"v": str(version), name: 1}) for name in names]
                placed = store.update(added)
                assert placed.rows.tolist() == list(range(len(rows), len(rows) + len(added)))
                assert placed.replaced.tolist() == sorted(live[n] for n in names if n in live)
                for row in placed.replaced.tolist():
                    rows[row] = None
                rows += added
            elif change == "delete":
                gone = [live[name] for name in names if name in live]
                store.delete(gone)
                for row in gone:
                    rows[row] = None
            else:
                store.compact()
                rows = [document for document in rows if document is not None]
        for reader in (store, open_documents(folder)):
            kept = [document for document in rows if document is not None]
            assert list(reader) == kept
            assert len(reader) == len(kept)
            assert reader.rows_total == len(rows)
            for row, document in enumerate(rows):
                if document is not None:
                    assert reader.row(document.id) == row
                    assert reader.document(row) == document
                    assert reader.find(document.id) == document
            names = [f"d{number}" for number in range(31)]
            live = {d.id: row for row, d in enumerate(rows) if d is not None}
            assert reader.rows(names).tolist() == [live.get(name, -1) for name in names]
            assert [name in reader for name in names] == [name in live for name in names]
        verify(Path(folder))


def test_block_bounds(tmp_path: Path) -> None:
    sizes = [0, 1, 40_000, 3, *[2_000] * 70, 100_000, 0]
    written = [Document(str(i), "é" * (i % 3), "x" * size) for i, size in enumerate(sizes)]
    store = write_documents(tmp_path, written)
    assert list(store) == written
    assert store.documents(range(len(written))) == written
    one_at_a_time = [store.document(row) for row in range(len(written))]
    assert one_at_a_time == written


def test_one_document_and_none(tmp_path: Path) -> None:
    store = write_documents(tmp_path, some(1))
    assert (store.id(0), store.text("d0"), store.texts([]), store.ids([])) == (
        "d0",
        "title 0",
        [],
        [],
    )
    store.delete([0])
    assert (len(store), store.rows_total, list(store), store.find("d0")) == (0, 1, [], None)
    store.compact()
    assert (len(store), store.rows_total) == (0, 0)
    assert store.append(some(2)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            Document("d1", "", "again"),
            r"documents 1 and 3 \(counted from 0\) .* id 'd1'",
        ),
        (Document("", "", "x"), r"document 3: .*with an id that is not empty"),
        (Document("x", "", "half \ud83d"), r"document 'x': character 5 is half a surrogate pair"),
        (Document("x", "", None), r"document 3: .*three strings"),  # type: ignore[arg-type]
    ],
)
def test_bad_documents_leave_the_folder_as_it_was(
    tmp_path: Path, document: Document, message: str
) -> None:
    write_documents(tmp_path, some(2, start=50))
    with pytest.raises(DataError, match=message):
        write_documents(tmp_path, [*some(3), document])
    assert list(open_documents(tmp_path)) == some(2, start=50)


def test_hash_collisions_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (document_segment, document_store):
        monkeypatch.setattr(module, "id_hash", lambda name: len(name))
    store = write_documents(tmp_path, some(12))
    store.append(some(5, start=20))
    ids = [document.id for document in [*some(12), *some(5, start=20)]]
    assert store.rows([*ids, "d99", "zzzzz"]).tolist() == [*range(17), -1, -1]


def test_absent_documents_are_named(tmp_path: Path) -> None:
    store = write_documents(tmp_path, some(3))
    with pytest.raises(DataError, match=r"2 of 3 requested documents .*\('x', 'y'\)"):
        store.texts(["x", "d1", "y"])
    with pytest.raises(DataError, match="row 3 is outside the 3 rows"):
        store.document(3)
    with pytest.raises(DataError, match="row -1 is outside"):
        store.ids([0, -1])


def test_opening_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path, some(100))
    file = next(tmp_path.glob("g*/*-texts.bin"))
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(IndexFormatError, match="checksum"):  # small folders are checked whole
        open_documents(tmp_path)
    monkeypatch.setattr(sluice.encoders.foundation.disk.generations, "CHECKSUM_LIMIT", 0)
    store = open_documents(tmp_path)
    assert store.ids([99, 0]) == ["d99", "d0"]
    assert store.row("d7") == 7
    with pytest.raises(IndexFormatError, match=r"texts\.bin: block 0 at byte 0 cannot be decomp"):
        store.document(5)


def test_readers_keep_what_they_opened(tmp_path: Path) -> None:
    store = write_documents(tmp_path, some(40))
    reader = open_documents(tmp_path)
    store.append(some(1, start=40))
    store.delete([0, 3])
    store.compact()
    assert list(reader) == some(40)
    with pytest.raises(IndexFormatError, match="open it again before changing it"):
        reader.delete([1])


def test_earlier_segments_are_linked_not_copied(tmp_path: Path) -> None:
    store = write_documents(tmp_path, some(40))
    before = {file.name: file.stat().st_ino for file in tmp_path.glob("g*/*-texts.bin")}
    store.append(some(1, start=40))
    after = {f.name: f.stat().st_ino for f in (tmp_path / store.generation).glob("*-texts.bin")}
    assert before.items() <= after.items()
    assert len(after) == 2


def test_copying_where_links_are_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    store = write_documents(tmp_path, some(40))
    store.append(some(5, start=40))
    assert list(open_documents(tmp_path)) == some(45)


def test_an_outer_manifest_can_pin_a_generation(tmp_path: Path) -> None:
    store = write_documents(tmp_path, some(3))
    pinned = store.generation
    store.append(some(1, start=3))
    assert len(open_documents(tmp_path, generation=pinned)) == 3
    pin_generation(tmp_path, pinned)
    again = open_documents(tmp_path)
    assert (len(again), again.generation) == (3, pinned)
    assert again.append(some(2, start=3)).tolist() == [3, 4]
    assert list(open_documents(tmp_path)) == some(5)


@pytest.mark.parametrize("change", ["append", "update", "compact"])
def test_an_interruption_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store = write_documents(tmp_path, some(40))
    store.delete([1])
    before = list(store)

    def interrupted(self: Segment) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Segment, "refuse_repetitions", interrupted)
    steps: dict[str, Callable[[], object]] = {
        "append": lambda: store.append(some(3, start=40)),
        "update": lambda: store.update(some(3, start=38)),
        "compact": store.compact,
    }
    with pytest.raises(KeyboardInterrupt):
        steps[change]()
    monkeypatch.undo()
    assert list(open_documents(tmp_path)) == before == list(store)
    steps[change]()
    assert (
        len(open_documents(tmp_path))
        == len(before) + {"append": 3, "update": 1, "compact": 0}[change]
    )


def test_streams_in_bounded_memory_and_good_time(tmp_path: Path) -> None:
    def stream() -> Iterator[Document]:
        for i in range(60_000):
            yield Document(f"doc-{i:08d}", "a title", f"some short text number {i} " * 6)

    start = time.perf_counter()
    store = write_documents(tmp_path, stream())
    assert time.perf_counter() - start < 10  # a tenth of a second for each thousand would fail
    rows = np.random.default_rng(0).integers(60_000, size=3_000)
    start = time.perf_counter()
    found = store.texts(store.ids(rows))
    assert time.perf_counter() - start < 3
    assert found[0] == f"a title {f'some short text number {rows[0]} ' * 6}".strip()
