"""Twelve things as first written in Python, the page on it, and hints that editors complete."""

import ast
import asyncio
import importlib
import inspect
import re
import sys
import types
import typing
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import WordEncoder, documents, write_beir

import sluice
from sluice import (
    BM25Encoder,
    Document,
    Rerank,
    Retriever,
    Run,
    SluiceError,
    compare,
    evaluate,
    load_dataset,
    load_pipeline,
)

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
DOCS = [document._replace(metadata={"year": 2000 + n}) for n, document in enumerate(documents())]
Q1, Q2 = "gold river", "vector index"


def embed(texts: list[str]) -> Any:
    vectors = np.zeros((len(texts), 32))
    for row, text in enumerate(texts):
        for word in text.split():
            vectors[row, zlib.crc32(word.encode()) % 32] += 1
    return vectors


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), DOCS)


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(embed, DOCS)  # 3: a function as encoder


def test_weighted_and_fused(bm25: Retriever, dense: Retriever) -> None:  # 1
    assert len((bm25 | dense).search(Q1, k=3)) == 3
    assert len((0.3 * bm25 + 0.7 * dense).run({"a": Q1}, k=3)["a"]) == 3


def test_a_lambda_reranks(bm25: Retriever) -> None:  # 2
    by_pairs = bm25 % 10 >> Rerank(lambda pairs: [len(text) for _, text in pairs])
    by_query = bm25 % 10 >> Rerank(lambda query, texts: [len(text) for text in texts])
    assert by_pairs.search(Q1) == by_query.search(Q1)


def test_several_queries_and_frames(bm25: Retriever, dense: Retriever) -> None:  # 4
    import pandas as pd

    hits = bm25.search([Q1, Q2], k=3)
    assert hits == [bm25.search(Q1, k=3), bm25.search(Q2, k=3)]
    run = (bm25 | dense).run([Q1, Q2], k=3)
    frame = run.to_dataframe()
    assert list(frame.columns) == ["query", "doc_id", "rank", "score"]
    assert frame[frame["query"] == "1"]["doc_id"].tolist() == list(run["1"].doc_ids)
    assert frame["rank"].tolist() == [1, 2, 3] * 2
    series = pd.Series([Q1, Q2], index=["x", "y"])
    assert list(bm25.run(series)) == ["x", "y"]
    assert list(bm25.run(np.array([Q1, Q2]))) == list(bm25.run(iter([Q1, Q2]))) == ["0", "1"]
    assert dict(bm25.run({1: Q1})) == {"1": bm25.run([Q1])["0"]}  # type: ignore[dict-item]
    assert len(Run({}).to_pandas()) == 0
    pl = pytest.importorskip("polars")
    assert run.to_polars().equals(pl.from_pandas(frame))
    for shown in (run, bm25, bm25 | dense, compare({"a": run}, {"0": {"d00": 1}})):
        assert shown._repr_html_().startswith("<table>")


def test_vectors_of_ones_own(dense: Retriever) -> None:  # 5
    texts = [document.full_text for document in DOCS]
    for vectors in (embed(texts), embed(texts).tolist(), [embed(texts[:9]), embed(texts[9:])]):
        given = Retriever.build(WordEncoder(32), DOCS, vectors=vectors)
        vector = embed([Q1])[0]
        hits = given.search(vector=vector, k=3)
        scores = embed(texts) @ vector
        assert [hit.score for hit in hits] == sorted(scores.tolist(), reverse=True)[:3]
        assert [scores[int(hit.doc_id[1:])] for hit in hits] == [hit.score for hit in hits]
        assert hits == given.search(vector=vector[None].astype(np.float32), k=3)
    where = {"year": {"lt": 2005}}
    found = [hit.doc_id for hit in dense.search(vector=embed([Q1])[0], where=where)]
    assert found == [hit.doc_id for hit in dense.search(Q1, where=where)]


def test_passages_of_several_queries_and_of_vectors() -> None:
    long = {"a": "water " * 30 + "gold coin here", "b": "dense " * 40 + "river"}
    retriever = Retriever.build(embed, long, passages=sluice.Passages(length=10, overlap=2))
    alone = [retriever.search(query, 1)[0] for query in ("gold coin", "dense river")]
    together = retriever.search(["gold coin", "dense river"], 1)
    by_vector = retriever.search(vector=embed(["gold coin"])[0], k=1)
    assert [hits[0] for hits in together] == alone
    assert by_vector[0].passage == alone[0].passage
    assert alone[0].passage is not None
    assert "gold" in alone[0].passage.text


def test_awaited(bm25: Retriever, dense: Retriever) -> None:  # 6
    async def both() -> Any:
        return await asyncio.gather(bm25.asearch(Q1, 3), (bm25 | dense).arun([Q2], k=2))

    hits, run = asyncio.run(both())
    assert hits == bm25.search(Q1, 3)
    assert dict(run) == dict((bm25 | dense).run([Q2], k=2))
    vector = dense.encoder.encode_queries([Q1])[0]
    assert asyncio.run(dense.asearch(vector=vector, k=2)) == dense.search(vector=vector, k=2)
    with pytest.raises(SluiceError, match="unknown"):
        asyncio.run(bm25.asearch(Q1, params={"unknown": 1}))


def test_documents_of_a_retriever(bm25: Retriever) -> None:  # 7
    assert [d for d in bm25] == list(bm25.documents()) == DOCS
    assert bm25["d07"] == DOCS[7]
    assert "d07" in bm25
    assert "zz" not in bm25
    assert 7 not in bm25
    with pytest.raises(KeyError, match="no document 'zz' among 40"):
        bm25["zz"]


def test_filters_everywhere(bm25: Retriever, dense: Retriever) -> None:  # 8
    hybrid = bm25 | dense
    hits = hybrid.search(Q1, where={"year": {"gte": 2020}})
    assert hits
    assert all(hit.doc_id >= "d20" for hit in hits)


def test_saved_and_loaded(  # 9
    bm25: Retriever, dense: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bm25.save("x")
    assert Retriever.load("x").search(Q1) == bm25.search(Q1)
    (bm25 | dense).save("p")
    opened = load_pipeline("p", given={"function": embed})
    assert opened.search(Q1) == (bm25 | dense).search(Q1)
    assert "temporary: save(path) keeps it" in repr(bm25)
    assert repr(Retriever.load("x")) == (
        "Retriever('bm25', bm25 encoder, inverted index, 40 documents, 'x')"
    )


def test_measured(bm25: Retriever, tmp_path: Path) -> None:  # 10
    dataset = load_dataset(str(write_beir(tmp_path / "world")))
    scores = evaluate(bm25, dataset, ["ndcg@10"])
    assert list(evaluate(bm25, dataset).mean) == ["nDCG@10", "R@100"]
    run = bm25.run(dataset.queries)
    run.save(tmp_path / "run.trec")
    runs = {"a": Run(run.to_dict()), "b": Run.load(tmp_path / "run.trec")}
    frame = compare(runs, dataset.qrels, ["nDCG@10"]).to_pandas()
    assert frame.loc["b", "nDCG@10"] == scores.mean["nDCG@10"]


def test_an_agents_retriever(bm25: Retriever) -> None:  # 12; 11 is in encoders/test_given.py
    pytest.importorskip("langchain_core")
    from sluice.retrieval.exchange.adapters import langchain_retriever

    assert len(langchain_retriever(bm25, k=2).invoke(Q1)) == 2


def test_corpora_as_they_are(bert: Path) -> None:
    import pandas as pd

    assert Document("1", text="x") == Document("1", "", "x")
    texts = ["gold in the river", "dense vectors"]
    rows = [{"docid": "a", "contents": texts[0]}, {"docid": "b", "contents": texts[1]}]
    for corpus, first in (
        (texts, "0"),
        (rows, "a"),
        (pd.DataFrame(rows), "a"),
        ({"k": "gold"}, "k"),
    ):
        for built in (Retriever.build(corpus), Retriever.build("bm25", corpus)):
            assert [hit.doc_id for hit in built.search("gold")] == [first]
    assert Retriever.build(str(bert), texts).name == "dense"


def test_wrong_guesses_end_in_a_sentence(bm25: Retriever, dense: Retriever) -> None:
    guesses: list[Any] = [
        lambda: Retriever.build(),
        lambda: Retriever.build(BM25Encoder()),
        lambda: Retriever.build(BM25Encoder, DOCS),
        lambda: Retriever.build(DOCS, BM25Encoder()),
        lambda: Retriever.build(3, DOCS),
        lambda: Retriever.build("bm25", 3),
        lambda: Retriever.build("bm25", [3]),
        lambda: Retriever.build(lambda texts: [1], DOCS),
        lambda: Retriever.build(embed, DOCS, vectors=np.ones(40)),
        lambda: Retriever.build(embed, DOCS, vectors=3),
        lambda: bm25.search(3),
        lambda: bm25.search({"a": Q1}),
        lambda: bm25.search([Q1, 3]),
        lambda: bm25.search(Q1, k=0),
        lambda: bm25.search(Q1, k="3"),
        lambda: bm25.search(Q1, where="lang"),
        lambda: bm25.search(Q1, where={"lang": "en"}),
        lambda: dense.search(Q1, vector=embed([Q1])[0]),
        lambda: dense.search(vector=embed([Q1, Q2])),
        lambda: dense.search(vector=[1.0, 2.0]),
        lambda: bm25.run(3),
        lambda: bm25.run([[Q1]]),
        lambda: (bm25 | dense).run({"a": None}),
        lambda: bm25 >> Rerank(3),
        lambda: bm25 >> Rerank(dict),
        lambda: (bm25 >> Rerank(lambda pairs: "x")).search(Q1),
        lambda: -1 * bm25 + dense,
        lambda: bm25 % 2.5,
        lambda: bm25["zz"],
        lambda: load_pipeline("nowhere"),
        lambda: Retriever.load("nowhere"),
        lambda: evaluate(bm25, {"a": {"d00": 1}}),
        lambda: sluice.show_progress("on"),
    ]
    for place, guess in enumerate(guesses):
        with pytest.raises(SluiceError) as raised:
            guess()
        message = str(raised.value)
        assert 15 < len(message) < 400, (place, message)
        assert "Traceback" not in message


def test_progress_goes_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sluice.encoders.foundation.progress import progress

    def work() -> None:
        with progress("count", 3, "things") as advance:
            for _ in range(3):
                advance()

    seen: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    try:
        sluice.show_progress(lambda *step: seen.append(step))
        work()
        assert seen == [("count", done, 3) for done in range(4)]
        for to in (False, True):
            sluice.show_progress(to)
            monkeypatch.setenv("SLUICE_PROGRESS", "0" if to else "")
            work()
            assert capsys.readouterr().err == ""
        monkeypatch.delenv("SLUICE_PROGRESS")
        sluice.show_progress(sys.stdout)
        work()
        assert "3/3" in capsys.readouterr().out
        assert len(seen) == 4
    finally:
        sluice.show_progress(True)


def test_the_page_runs(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 8
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        code = block.replace('"all-MiniLM-L6-v2"', repr(str(bert)))
        exec(compile(code, "docs/python.md", "exec"), names)
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    errors = importlib.import_module("sluice.encoders.foundation.errors")
    kinds = {n for n, each in vars(errors).items() if inspect.isclass(each)} - {"SluiceError"}
    assert named == {name for name in kinds if issubclass(getattr(errors, name), SluiceError)}


def _scope(module: types.ModuleType) -> dict[str, Any]:
    """Return a module's names, those it imports for type checkers included."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = dict(vars(module))
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    home = importlib.import_module(line.module)
                    names |= {a.asname or a.name: getattr(home, a.name) for a in line.names}
    return names


def test_hints_are_complete_for_editors() -> None:
    for name in sluice.__all__:
        thing = getattr(sluice, name)
        methods = [thing] if inspect.isfunction(thing) else []
        if inspect.isclass(thing):
            methods = [
                getattr(each, "__func__", getattr(each, "fget", each))
                for label, each in inspect.getmembers_static(thing)
                if not label.startswith("_")
            ]
        for method in methods:
            where = f"{name}.{getattr(method, '__name__', '')}"
            if not inspect.isfunction(method) or not method.__module__.startswith("sluice"):
                continue
            plain = inspect.unwrap(method)
            hints = typing.get_type_hints(plain, _scope(sys.modules[plain.__module__]))
            parameters = list(inspect.signature(plain).parameters)
            assert "return" in hints, where
            missing = [p for p in parameters if p not in hints and p not in ("self", "cls")]
            assert not missing, (where, missing)
            assert inspect.getdoc(method), where
