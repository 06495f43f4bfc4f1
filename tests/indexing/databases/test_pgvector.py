"""PgvectorIndex against the exact indexes, in a real PostgreSQL."""

from __future__ import annotations

import fcntl
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres import Postgres
from scipy import sparse

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    MissingPackageError,
)
from sluice.indexing import FlatIndex, InvertedIndex, PgvectorIndex, open_index
from sluice.indexing.databases.index import Condition
from sluice.indexing.databases.pgvector import states
from sluice.indexing.databases.pgvector.connection import _answers
from sluice.indexing.databases.pgvector.table import Table, row_of
from sluice.retrieval.config.components import check_index
from sluice.retrieval.config.trust import databases_in
from sluice.retrieval.exchange.retriever_files import is_decoded

pytestmark = pytest.mark.thorough

RNG = np.random.default_rng(7)
# Small whole numbers: every sum is exact, and most scores tie.
DOCUMENTS = RNG.integers(-2, 3, (150, 6)).astype(np.float32)
QUERIES = RNG.integers(-2, 3, (9, 6)).astype(np.float32)
TERMS: Any = sparse.csr_array(
    np.where(RNG.random((150, 40)) < 0.1, RNG.integers(1, 4, (150, 40)), 0).astype(np.float32)
)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)


def saved(index: PgvectorIndex, folder: Path) -> PgvectorIndex:
    """Save and commit as a retriever does, and open the folder."""
    index.save(folder)
    index.settle()
    opened = open_index(folder, allow=[index.address])
    assert isinstance(opened, PgvectorIndex)
    return opened


def rows_in(postgres: Postgres, name: str, where: str = "true") -> int:
    import psycopg

    with psycopg.connect(postgres.dsn) as connection:
        statement = f'SELECT count(*) FROM "{name}" WHERE {where}'
        found = connection.execute(statement).fetchone()  # type: ignore[call-overload]
    return int(found[0])


def tables_in(postgres: Postgres, prefix: str) -> list[str]:
    import psycopg

    with psycopg.connect(postgres.dsn) as connection:
        named = "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s) ORDER BY 1"
        return [name for (name,) in connection.execute(named, [prefix]).fetchall()]


@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("column", [None, "halfvec"])
def test_exact_hits_are_those_of_a_flat_index(
    postgres: Postgres, tmp_path: Path, metric: Any, column: Any
) -> None:
    flat, index = FlatIndex(metric), PgvectorIndex(postgres.dsn, metric=metric, column=column)
    for part in np.array_split(DOCUMENTS, 2):
        np.testing.assert_array_equal(flat.add(part), index.add(part))
    for k in (0, 1, 7, 150, 200):
        same(index.search(QUERIES, k), flat.search(QUERIES, k))
    same(index.search(QUERIES[:0], 3), flat.search(QUERIES[:0], 3))
    keep = np.arange(150) % 3 == 0
    same(index.search(QUERIES, 20, keep=keep), flat.search(QUERIES, 20, keep=keep))
    for each in (flat, index):
        each.delete([0, 5, 149])
    opened = saved(index, tmp_path / "index")
    assert (len(opened), opened.rows, opened.width) == (147, 150, 6)
    same(opened.search(QUERIES, 150), flat.search(QUERIES, 150))
    same(opened.search(QUERIES, 20, keep=keep), flat.search(QUERIES, 20, keep=keep))
    np.testing.assert_array_equal(opened.documents([3, 0, 3]), DOCUMENTS[[3, 0, 3]])
    assert opened.verify()[:2] == ["150 rows", "the vectors of 64 of them"]
    np.testing.assert_array_equal(opened.compact(), flat.compact())
    opened.add(DOCUMENTS[:4])
    flat.add(DOCUMENTS[:4])
    same(saved(opened, tmp_path / "index").search(QUERIES, 200), flat.search(QUERIES, 200))


def test_cosine(postgres: Postgres, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    documents = rng.normal(size=(60, 5)).astype(np.float32)
    documents[7] = 0
    queries = np.vstack([rng.normal(size=(3, 5)), np.zeros((1, 5))]).astype(np.float32)
    index = PgvectorIndex(postgres.dsn, metric="cosine")
    index.add(documents)
    lengths = np.linalg.norm(documents.astype(np.float64), axis=1)
    lengths[7] = 1
    for query, rows, scores in zip(queries, *index.search(queries, 60), strict=True):
        length = np.linalg.norm(query.astype(np.float64)) or 1.0
        true = documents.astype(np.float64) @ query / lengths / length
        np.testing.assert_allclose(scores, true[rows], rtol=0, atol=1e-5)
        np.testing.assert_allclose(scores, np.sort(true)[::-1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(index.search(queries, 60).rows[3], np.arange(60))


def test_sparse_hits_are_those_of_an_inverted_index(postgres: Postgres, tmp_path: Path) -> None:
    inverted, index = InvertedIndex(), PgvectorIndex(postgres.dsn)
    for each in (inverted, index):
        each.add(TERMS[:100])
        each.add(sparse.csr_array((TERMS[100:].data, TERMS[100:].indices, TERMS[100:].indptr),
                                  shape=(50, 45)))  # fmt: skip  # the vocabulary has grown
    queries = TERMS[:12]
    for k in (1, 10, 150):
        same(index.search(queries, k), inverted.search(queries, k))
    assert (index.search(queries, 150).rows == -1).any()  # no shared term, no hit
    opened = saved(index, tmp_path / "index")
    assert opened.metric is None
    same(opened.search(queries, 10), inverted.search(queries, 10))
    np.testing.assert_array_equal(
        opened.documents([2, 1]).toarray()[:, :40], TERMS[[2, 1]].toarray()
    )


def test_the_graph_finds_ties_by_row_and_is_measured(postgres: Postgres, tmp_path: Path) -> None:
    index = PgvectorIndex(postgres.dsn, method="hnsw", metric="l2", m=8, ef_construction=40)
    index.add(DOCUMENTS)
    opened = saved(index, tmp_path / "index")
    exact = opened.search_exactly(QUERIES, 10)
    walked = opened.search(QUERIES, 10, params={"ef_search": 150})
    same(walked, exact)
    assert (np.diff(exact.scores, axis=1) == 0).any()
    import psycopg

    with psycopg.connect(postgres.dsn) as connection:
        name = tables_in(postgres, "sluice_")
        assert f"{opened._table.name}_hnsw" in [  # type: ignore[union-attr]
            row[0] for row in connection.execute("SELECT indexname FROM pg_indexes").fetchall()
        ]
        assert name
    assert opened.notes["recall"] > 0.9
    assert any("recall@10" in each for each in opened.differences)
    assert "recall@10" in opened.verify()[-1]
    # More than a walk meets: all rows are scored.
    assert (opened.search(QUERIES, 150, params={"ef_search": 1}).rows >= 0).all()
    few = np.array([4, 40, 90])
    assert set(opened.search(QUERIES[:1], 5, keep=few).rows[0].tolist()) == {4, 40, 90, -1}
    with pytest.raises(ConfigError, match="ef_search is 1001, expected a whole number, 1 to 1000"):
        opened.search(QUERIES, 3, params={"ef_search": 1001})
    with pytest.raises(ConfigError, match="unknown search parameter 'ef_search'"):
        PgvectorIndex(postgres.dsn).search(QUERIES, 3, params={"ef_search": 10})


def test_limits_of_sparse_vectors(postgres: Postgres) -> None:
    wide = np.zeros((2, 1200), np.float32)
    wide[0, :3] = [1, 2, 3]
    wide[1] = np.arange(1, 1201)
    with pytest.raises(DataError, match=r"row 1 has 1,200 weights.* set prune: 1000"):
        PgvectorIndex(postgres.dsn, method="hnsw").add(sparse.csr_array(wide))
    index = PgvectorIndex(postgres.dsn, prune=2)
    index.add(sparse.csr_array(wide))
    kept = index.documents([0, 1]).toarray()
    assert kept[0, :3].tolist() == [0, 2, 3]
    assert np.flatnonzero(kept[1]).tolist() == [1198, 1199]
    share = (1 + wide[1, :1198].sum()) / wide.sum()
    assert f"prune: 2 dropped {share:.2%} of the weight of all vectors" in index.differences


METADATA = [
    {}, {"lang": "en"}, {"lang": "de", "year": 2020}, {"year": 2020.5}, {"year": "2020"},
    {"tags": ["a", "b"]}, {"tags": []}, {"tags": "a"}, {"ok": True}, {"ok": False, "year": 1},
    {"lang": "Ä"}, {"la'n\"g; DROP TABLE x --": "v'); DROP TABLE sluice_indexes; --"},
]  # fmt: skip


@pytest.mark.parametrize(
    "where",
    [
        {"lang": "en"}, {"lang": ["en", None]}, {"lang": {"not": "en"}}, {"lang": None},
        {"lang": {"not": None}}, {"year": 2020}, {"year": {"gte": 2, "lt": 2020.5}},
        {"year": {"gt": "2019"}}, {"year": {"not": [2020, "2020"]}}, {"tags": "a"},
        {"tags": {"not": "b"}}, {"tags": []}, {"ok": True}, {"ok": {"not": True}},
        {"lang": {"gt": "en"}}, {"lang": {"lte": "en"}}, {"lang": "en", "year": None},
        {"la'n\"g; DROP TABLE x --": "v'); DROP TABLE sluice_indexes; --"},
    ],
)  # fmt: skip
def test_conditions_select_what_our_filter_selects(
    described: tuple[PgvectorIndex, Any], where: Any
) -> None:
    from sluice.retrieval.documents.where import conditions, matching_rows

    index, store = described
    expected = np.flatnonzero(matching_rows(store, conditions(where)))
    hits = index.search_where(np.ones((1, 2), np.float32), 12, conditions(where))
    assert hits.rows[0][hits.rows[0] >= 0].tolist() == expected.tolist()


@pytest.fixture(scope="module")
def described(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.documents.store import write_documents

    folder = tmp_path_factory.mktemp("documents")
    documents = (Document(f"d{n}", text="x", metadata=each) for n, each in enumerate(METADATA))
    store = write_documents(folder, documents)
    index = PgvectorIndex(postgres.dsn, table='a"; DROP TABLE x; --')
    index.described = store.described
    index.add(np.ones((12, 2), np.float32))
    assert len(tables_in(postgres, 'a"; DROP TABLE x; --_')) == 1
    return index, store


def test_an_index_without_metadata_says_so(postgres: Postgres) -> None:
    index = PgvectorIndex(postgres.dsn)
    index.add(DOCUMENTS)
    with pytest.raises(ConfigError, match="no metadata of some rows"):
        index.search_where(QUERIES, 3, [Condition("lang", "any", ("en",))])


def test_what_a_killed_change_left_is_undone(postgres: Postgres, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index = PgvectorIndex(postgres.dsn, table="undone")
    index.add(DOCUMENTS[:20])
    reader = saved(index, folder)
    before = reader.search(QUERIES, 30)
    killed = open_index(folder, allow=[postgres.dsn])
    killed.add(DOCUMENTS[20:40])
    killed.delete([0, 1, 2])
    assert len(killed.search(QUERIES[:1], 50).rows[0]) == 50
    same(reader.search(QUERIES, 30), before)  # others do not see what is not committed
    again = open_index(folder, allow=[postgres.dsn])
    again.delete([4])
    with pytest.raises(IndexFormatError, match="changed by another program meanwhile"):
        killed.add(DOCUMENTS[:1])
    opened = saved(again, folder)  # type: ignore[arg-type]
    (name,) = tables_in(postgres, "undone_")
    assert rows_in(postgres, name) == 20
    assert rows_in(postgres, name, "died IS NOT NULL") == 1
    assert len(opened) == 19
    opened.verify()

    # A compaction that was killed leaves a table, which the next change drops.
    half = open_index(folder, allow=[postgres.dsn])
    half.compact()
    assert len(tables_in(postgres, "undone_")) == 2
    opened.add(DOCUMENTS[:1])
    assert tables_in(postgres, "undone_") == [name]


def test_a_kill_between_the_commit_and_its_note(postgres: Postgres, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index = PgvectorIndex(postgres.dsn, table="noted")
    index.add(DOCUMENTS[:20])
    index.save(folder)  # and no settle, thrice
    for row in (3, 4):
        opened = open_index(folder, allow=[postgres.dsn])
        opened.delete([row])
        opened.save(folder)
    last = saved(open_index(folder, allow=[postgres.dsn]), folder)  # type: ignore[arg-type]
    assert len(last) == 18
    last.verify()
    assert not np.isin([3, 4], last.search(QUERIES, 20).rows).any()


def test_an_older_copy_is_read_and_not_changed(postgres: Postgres, tmp_path: Path) -> None:
    import shutil

    index = PgvectorIndex(postgres.dsn)
    index.add(DOCUMENTS[:20])
    saved(index, tmp_path / "index")
    shutil.copytree(tmp_path / "index", tmp_path / "copy")
    newer = open_index(tmp_path / "index", allow=[postgres.dsn])
    newer.delete([3])
    saved(newer, tmp_path / "index")  # type: ignore[arg-type]
    copy = open_index(tmp_path / "copy", allow=[postgres.dsn])
    assert 3 in copy.search(QUERIES, 20).rows
    with pytest.raises(IndexFormatError, match="another copy of this folder has changed it"):
        copy.verify()
    with pytest.raises(IndexFormatError, match="which is an older copy"):
        copy.add(DOCUMENTS[:1])


def test_verify_names_what_was_changed(postgres: Postgres, tmp_path: Path) -> None:
    import psycopg

    index = PgvectorIndex(postgres.dsn, table="changed")
    index.add(DOCUMENTS[:20])
    opened = saved(index, tmp_path / "index")
    (name,) = tables_in(postgres, "changed_")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE {name} SET embedding = '[9,9,9,9,9,9]' WHERE row = 4")  # type: ignore[call-overload]
        with pytest.raises(IndexFormatError, match="the vector of row 4 is another"):
            opened.verify()
        connection.execute(f"DELETE FROM {name} WHERE row = 4")  # type: ignore[call-overload]
        with pytest.raises(IndexFormatError, match="it has 19 rows, 0 of them deleted"):
            opened.verify()
        connection.execute(f"DROP TABLE {name}")  # type: ignore[call-overload]
    with pytest.raises(IndexFormatError, match=r"is gone .* rebuild it"):
        opened.search(QUERIES, 3)


def test_a_folder_reaches_no_database_unasked(postgres: Postgres, tmp_path: Path) -> None:
    index = PgvectorIndex(postgres.dsn)
    index.add(DOCUMENTS[:3])
    saved(index, tmp_path / "index")
    with pytest.raises(ConfigError, match="is a database, and opening a folder never reaches one"):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("written", ["", "postgresql://"])
def test_the_server_of_the_environment_needs_a_word_too(tmp_path: Path, written: str) -> None:
    index = PgvectorIndex()
    index.save(tmp_path / "index")
    for file in (tmp_path / "index").rglob("*.json"):  # "" is how it was written before
        file.write_text(file.read_text().replace('"dsn": "postgresql://"', f'"dsn": "{written}"'))
    with pytest.raises(
        ConfigError, match=r"dsn: postgresql:// is a database, .*--allow postgresql"
    ):
        open_index(tmp_path / "index")
    assert index.words == ["postgresql://"]
    assert len(open_index(tmp_path / "index", allow=index.words)) == 0
    own = {"type": "pgvector", "table": "t"}
    assert databases_in(own) == databases_in({**own, "dsn": written}) == {"postgresql://"}


def test_empty_and_unreachable(postgres: Postgres, tmp_path: Path) -> None:
    index = PgvectorIndex(postgres.dsn)
    assert index.search(QUERIES, 3).rows.tolist() == [[-1] * 3] * 9
    opened = saved(index, tmp_path / "index")
    assert (len(opened), opened.size_bytes, opened.verify()) == (0, 0, ())
    opened.add(DOCUMENTS[:1])
    assert opened.search(QUERIES, 1).rows.tolist() == [[0]] * 9
    gone = PgvectorIndex("postgresql://u@/d?host=/nowhere")
    with pytest.raises(ConfigError, match=r"cannot connect to postgresql://u@/d\?host=/nowhere"):
        gone.add(DOCUMENTS)


def test_without_its_client_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.indexing.databases.pgvector import connection

    monkeypatch.setattr(connection, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[pgvector\]'"):
        PgvectorIndex().add(DOCUMENTS)


def test_a_wider_column_or_graph_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"2,001 dimensions; vector has at most 2,000 with .*half"
    ):
        PgvectorIndex(method="hnsw").settings.check_width(2001, "vector")
    with pytest.raises(ConfigError, match="16,001 dimensions; halfvec has at most 16,000 in pgv"):
        PgvectorIndex().settings.check_width(16_001, "halfvec")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dsn": "postgresql://me:s3cret@host/db"}, "PGPASSWORD"),
        ({"dsn": "postgresql://me@host/db?password=s3cret"}, "PGPASSWORD"),
        ({"dsn": "postgresql://me:s3@cret@host/db"}, "PGPASSWORD"),
        ({"dsn": "host=x password=s3cret"}, "PGPASSWORD"),
        ({"dsn": "host=x password = 's3cret'"}, "PGPASSWORD"),
        ({"dsn": "host=x"}, "expected postgresql://"),
        ({"table": ""}, "table: ''"),
        ({"table": "x" * 41}, "1 to 40 bytes"),
        ({"table": "a\nb"}, "without line ends"),
        ({"table": "50%"}, "without line ends and %"),
        ({"column": "vektor"}, "did you mean 'vector'"),
        ({"method": "ivfflat"}, "expected one of exact, hnsw"),
        ({"m": 8}, "are those of method: hnsw"),
        ({"method": "hnsw", "m": 40}, "ef_construction is 64, expected a whole number, 80 to"),
        ({"metric": "dot"}, "metric"),
        ({"column": "sparsevec", "metric": "l2"}, "inner products alone"),
        ({"column": "vector", "prune": 3}, "only sparse vectors"),
        ({"method": "hnsw", "prune": 1001}, "1 to 1000"),
    ],
)
def test_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        PgvectorIndex(**settings)
    assert "s3cret" not in str(refused.value)


def test_only_a_zero_character_is_refused() -> None:
    written = row_of("d", {"path": "C:\\u0000", "none": None, "year": 1}).metadata
    assert json.loads(written[1:]) == {"path": "C:\\u0000", "none": None, "year": 1}
    for name, metadata in (("a\0", {}), ("a", {"\0": 1}), ("a", {"k": ("x", "\0")})):
        with pytest.raises(DataError, match="zero character"):
            row_of(name, metadata)


def test_a_server_that_ends_before_a_state_is_noted_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refusing(dsn: str) -> Any:
        raise ConfigError(f"pgvector: cannot connect to {dsn}")

    monkeypatch.setattr(states, "connected", refusing)
    made = states.States()
    made.dropped = {"former": ["mark"]}
    made.settle(Table("postgresql://nowhere/db", "own", "vector"), "postgresql://nowhere/db")
    assert "the next change repeats it" in caplog.text
    assert made.dropped == {"former": ["mark"]}


def test_descriptors_may_have_any_number() -> None:
    one, other = socket.socketpair()
    with one, other:
        try:
            number = fcntl.fcntl(one, fcntl.F_DUPFD, 1_500)
        except OSError as error:
            pytest.skip(f"no descriptor above 1,024 here ({error})")
        with socket.socket(fileno=number) as high:
            assert _answers(high)
            other.send(b"the end")
            assert not _answers(high)


def test_float16_vectors_are_said_to_be_decoded() -> None:
    assert is_decoded(PgvectorIndex(column="halfvec"), 6)
    assert not is_decoded(PgvectorIndex(), 6)


@pytest.mark.parametrize(
    ("index", "encoder", "message"),
    [
        ({"type": "pgvector", "metric": "l2"}, "bm25", "metric: l2; sparse vectors have inner"),
        ({"type": "pgvector", "prune": 5}, "dense", "prune: 5; only sparse vectors are pruned"),
        ({"type": "qdrant", "path": "db", "metric": "l2"}, "bm25", "metric: l2; sparse vectors"),
        ({"type": "qdrant", "path": "db", "method": "hnsw"}, "bm25", "method: hnsw; Qdrant"),
    ],
)
def test_settings_without_a_use_are_refused_before_the_corpus_is_read(
    index: dict[str, Any], encoder: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"index\.{message}"):
        check_index(index, {"type": encoder, "model": "m"}, where="index")
