"""Retrievers whose index lies in PostgreSQL: the command line, filters, kills, secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forks import run_forked
from small_world import SUBJECTS, documents, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import PgvectorIndex
from sluice.retrieval import Document, Retriever

pytestmark = pytest.mark.thorough

QUERIES = {f"q{n}": f"{one} river word{n}" for n, one in enumerate(SUBJECTS)}


def described() -> list[Document]:
    return [
        each._replace(metadata={"year": 2000 + n, "lang": "de" if n % 3 else "en"})
        for n, each in enumerate(documents())
    ]


def counted(postgres: Any, prefix: str) -> dict[str, tuple[int, ...]]:
    """Return the rows of each table: how many, how many different, and the last one's number."""
    import psycopg

    with psycopg.connect(postgres.dsn) as connection:
        named = "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s)"
        names = [name for (name,) in connection.execute(named, [prefix]).fetchall()]
        counts = "SELECT count(*), count(DISTINCT id), max(row) FROM "
        return {name: connection.execute(counts + name).fetchone() for name in names}  # type: ignore[misc, operator, call-overload]


def hits_of(answer: tuple[int, str, str]) -> dict[str, float]:
    code, out, err = answer
    assert code == 0, err
    hits = [json.loads(line) for line in out.splitlines()]
    return {hit["doc_id"]: hit["score"] for hit in hits}


def test_a_journey(postgres: Any, tmp_path: Path, sluice: Any) -> None:
    write_beir(tmp_path / "data")
    corpus = tmp_path / "data" / "corpus.jsonl"
    lines = [json.loads(line) for line in corpus.read_text("utf-8").splitlines()]
    noted = [{**line, "metadata": {"year": n}} for n, line in enumerate(lines)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in noted), encoding="utf-8")
    config, out = tmp_path / "x.yaml", tmp_path / "out"
    config.write_text(
        f"dataset: {tmp_path}/data\noutput: {out}\n"
        f"evaluate: {{latency_queries: 0, report: false}}\n"
        "retrievers:\n  local: {encoder: {type: bm25}}\n"
        f"  there: {{encoder: {{type: bm25}}, index: {{type: pgvector, dsn: '{postgres.dsn}', "
        "table: journey}}\npipelines: {local: local, there: there, both: local | there}\n"
    )
    code, _, err = sluice("run", config)
    assert code == 0, err
    assert "pgvector: exact; scores are float32 sums" in err
    systems = json.loads((out / "results.json").read_text())["systems"]
    assert systems[0]["measures"] == systems[1]["measures"]
    there, local = out / "retrievers" / "there", out / "retrievers" / "local"
    allow = ("--allow", postgres.dsn)
    for words in ([there, "gold"], [out, "gold", "--pipeline", "there"]):
        code, _, err = sluice("search", *words)
        assert code == 2
        assert "is a database, and opening a folder never reaches one that it names" in err
    assert sluice("search", out, "gold", "--pipeline", "both", *allow)[0] == 0
    for words in (["-k", "50"], ["--where", "year>=7", "--where", "id!=d10", "-k", "5"]):
        found = hits_of(sluice("search", there, "gold river", "--json", *words, *allow))
        expected = hits_of(sluice("search", local, "gold river", "--json", *words))
        assert list(found) == list(expected)
        assert found == pytest.approx(expected, rel=1e-5)  # float32 sums of another program
    assert sluice("explain", there, "gold river", "d10", *allow)[0] == 0
    added = tmp_path / "more.jsonl"
    added.write_text('{"_id": "n1", "text": "zebra gold", "metadata": {"year": 99}}\n')
    assert sluice("add", there, added, *allow)[0] == 0
    assert "n1" in sluice("search", there, "zebra", "--where", "year=99", *allow)[1]
    assert sluice("delete", there, "n1", "d10", *allow)[0] == 0
    assert "d10" not in sluice("search", there, "gold", "-k", "50", *allow)[1]
    code, _, err = sluice("verify", there, *allow)
    assert code == 0
    assert "41 rows" in err
    code, said, err = sluice("export", there, tmp_path / "home", "--format", "retriever", *allow)
    assert code == 0, err
    assert "39 documents, index of type inverted" in said
    words = ["gold river", "--json", "-k", "50", "--where", "year>=7"]
    found = hits_of(sluice("search", tmp_path / "home", *words))
    expected = hits_of(sluice("search", there, *words, *allow))
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-5)
    # Another build has its own table, and the former one is dropped.
    (before,) = counted(postgres, "journey_")
    assert sluice("run", config, "--rebuild")[0] == 0
    ((after, rows),) = counted(postgres, "journey_").items()
    assert after != before
    assert rows == (40, 40, 39)
    for words, message in (
        (["retrievers.there.shards=2"], "lies in a database, which parts it by its own means"),
        (["retrievers.there.search.ef_search=9"], "unknown search parameter 'ef_search'"),
        (["retrievers.there.index.tabel=x"], "did you mean 'table'"),
        (["retrievers.there.index.column=vector"], "pgvector holds dense vectors; a bm25 encoder"),
        (["retrievers.there.index.metric=l2"], "metric: l2; sparse vectors have inner products"),
    ):
        code, _, err = sluice("run", config, *words)
        assert (code, message in err) == (2, True), err


@pytest.mark.parametrize("method", ["exact", "hnsw"])
def test_passages_and_a_single_document(postgres: Any, tmp_path: Path, method: Any) -> None:
    from sluice.retrieval.retrievers.corpus.passages import Passages

    cut = Passages(length=8, overlap=2)
    for count in (1, 20):
        docs, path = described()[:count], tmp_path / str(count)
        index = PgvectorIndex(postgres.dsn, table="cut", method=method)
        there = Retriever.build(BM25Encoder(), docs, index=index, path=path, passages=cut)
        here = Retriever.build(BM25Encoder(), docs, passages=cut)
        for where in (None, {"lang": "de"}):
            one, other = (each.run(QUERIES, k=30, where=where) for each in (here, there))
            for query in QUERIES:
                assert set(one[query].doc_ids) == set(other[query].doc_ids)
                assert one[query].scores.tolist() == pytest.approx(
                    other[query].scores.tolist(), rel=1e-5
                )
        before = counted(postgres, "cut_")
        again = Retriever.open(path, allow=[postgres.dsn])
        again.update([Document("d00", "", "gold anew")])
        again.compact()
        assert again.search("gold anew", k=1)[0].doc_id == "d00"
        assert len(counted(postgres, "cut_")) == len(before)


def test_the_runs_of_both_are_equal_after_any_change(postgres: Any, tmp_path: Path) -> None:
    made = [
        Retriever.build(BM25Encoder(), described(), index=index, path=tmp_path / name)
        for name, index in (("here", None), ("there", PgvectorIndex(postgres.dsn)))
    ]
    steps: list[Any] = [
        lambda each: None,
        lambda each: each.update([Document("d03", "", "gold word1 anew", {"year": 1}),
                                  Document("new", "", "river word2 anew", {"lang": "fr"})]),
        lambda each: each.delete(["d01", "d39"]),
        lambda each: each.compact(),
        lambda each: each.add([Document("d01", "", "stone word1 anew", {"lang": "de"})]),
    ]  # fmt: skip
    filters: list[Any] = [
        None, {"lang": "de"}, {"lang": {"not": "de"}, "year": {"lt": 2020}}, {"year": None},
        {"id": ["d03", "d05", "new"], "year": {"not": 1}},
    ]  # fmt: skip
    for step in steps:
        for each in made:
            step(each)
        opened = Retriever.open(tmp_path / "there", allow=[postgres.dsn])
        for where in filters:
            here, there = (each.run(QUERIES, k=15, where=where) for each in (made[0], opened))
            for query in QUERIES:
                assert list(here[query].doc_ids) == list(there[query].doc_ids), (where, query)
                assert there[query].scores.tolist() == pytest.approx(
                    here[query].scores.tolist(), rel=1e-5
                )


def test_a_killed_build_goes_on_and_stores_each_row_once(postgres: Any, tmp_path: Path) -> None:
    import pg_build

    script = Path(pg_build.__file__)
    for at in (1, 2):  # the second process skips what the first copied, and dies later
        assert run_forked(script, tmp_path / "r", postgres.dsn, 1) == -9
        ((name, rows),) = counted(postgres, "killed_").items()
        assert rows == (10 * at, 10 * at, 10 * at - 1)
    built = pg_build.build(tmp_path / "r", postgres.dsn)
    assert counted(postgres, "killed_") == {name: (40, 40, 39)}
    vectors = pg_build.embed([each.full_text for each in documents()])
    whole = Retriever.build(pg_build.embed, documents(), vectors=vectors).run(QUERIES, k=40)
    for query, ranking in built.run(QUERIES, k=40).items():
        assert set(ranking.doc_ids) == set(whole[query].doc_ids)
        scores = dict(zip(whole[query].doc_ids, whole[query].scores.tolist(), strict=True))
        own = ranking.scores.tolist()
        assert own == pytest.approx([scores[name] for name in ranking.doc_ids], rel=1e-5, abs=1e-5)


def test_a_crash_of_the_server_loses_nothing(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pg_build

    from sluice.indexing.databases.pgvector.table import Table

    retriever = pg_build.build(tmp_path / "r", postgres.dsn)
    before = counted(postgres, "killed_")
    expected = retriever.run(QUERIES, k=40)
    copy = Table.copy

    def crashing(self: Table, connection: Any, *rest: Any) -> None:
        copy(self, connection, *rest)
        postgres.kill()

    monkeypatch.setattr(Table, "copy", crashing)
    new = [Document("new", "", "gold")]
    with pytest.raises(DataError, match="what was under way is undone"):
        retriever.add(new)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"cannot connect to .*start the server"):
        Retriever.open(tmp_path / "r", encoder=pg_build.embed, allow=[postgres.dsn]).search("x")
    postgres.start()
    opened = Retriever.open(tmp_path / "r", encoder=pg_build.embed, allow=[postgres.dsn])
    assert len(opened) == 40
    assert {q: list(r.doc_ids) for q, r in opened.run(QUERIES, k=40).items()} == {
        q: list(r.doc_ids) for q, r in expected.items()
    }
    assert counted(postgres, "killed_") == before
    assert opened.add(new) == 1
    opened.index.verify()


def test_no_secret_is_saved_or_shown(
    postgres: Any, tmp_path: Path, sluice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "data")
    config, out = tmp_path / "x.yaml", tmp_path / "out"
    config.write_text(
        f"dataset: {tmp_path}/data\noutput: {out}\n"
        f"retrievers: {{a: {{encoder: {{type: bm25}}, index: {{type: pgvector, dsn: '{{}}'}}}}}}\n"
    )
    text = config.read_text()
    config.write_text(text.replace("{}", "postgresql://me:s3cret@localhost/db"))
    code, out_text, err = sluice("index", config)
    assert code == 2
    assert "dsn: holds a password or a key, which would be saved; put the password in" in err
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    config.write_text(text.replace("{}", postgres.dsn))
    assert sluice("index", config)[0] == 0
    config.write_text(text.replace("{}", "postgresql://me@127.0.0.1:1/db"))
    code, more, again = sluice("index", config)
    assert code == 2
    assert "cannot connect" in again
    files = [each for each in out.rglob("*") if each.is_file()]
    assert files
    saved = "".join(each.read_bytes().decode("latin-1") for each in files)
    assert "s3cret" not in saved + out_text + err + more + again
