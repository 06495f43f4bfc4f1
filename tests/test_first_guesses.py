"""Twelve things as first written in Python, the page on it, and hints that editors complete."""

import ast
import asyncio
import copy
import importlib
import inspect
import pickle
import re
import sys
import types
import typing
import zlib
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

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
from sluice.familiar import lines

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


def test_an_agents_retriever(bm25: Retriever) -> None:  # 12; 11 is in encoders/test_objects.py
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
    assert len(blocks) == 9
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


class World(NamedTuple):
    """What the lines of the table, and first guesses, are about."""

    names: dict[str, Any]
    models: dict[str, str]


GOLD = ["gold lies in the river", "a sluice washes gravel", "dense and sparse vectors", "a river"]
TOPICS = {"q1": "gold river", "q2": "sparse vectors"}
TRUTH = {"q1": {"d0": 1, "d3": 1}, "q2": {"d2": 1}}


@pytest.fixture(scope="module")
def world(bert: Path, masked_bert: Path, pair_bert: Path) -> World:
    found = [Document(f"d{n}", "", text, {"year": 2000 + n}) for n, text in enumerate(GOLD)]
    model, cross = sluice.DenseEncoder(str(bert)), sluice.CrossEncoder(pair_bert)
    bm25, dense = Retriever.build("bm25", found), Retriever.build(model, found)
    vectors, hits = model.encode(GOLD), bm25.search("gold river")
    names = {name: getattr(sluice, name) for name in sluice.__all__} | {
        "sluice": sluice, "Path": Path, "documents": found, "texts": GOLD, "query": "gold river",
        "queries": TOPICS, "qrels": TRUTH, "model": model, "cross": cross, "bm25": bm25,
        "splade": sluice.SpladeEncoder(str(masked_bert)), "dense": dense, "hybrid": bm25 | dense,
        "vectors": vectors, "a": vectors, "b": vectors, "vector": vectors[0], "hits": hits,
        "hit": hits[0], "document": found[0], "run": bm25.run(TOPICS), "path": "folder",
        "pairs": [("gold", GOLD[0]), ("sparse", GOLD[2]), ("river", GOLD[3])],
    }  # fmt: skip
    names["triples"] = [(*pair, "another text") for pair in names["pairs"]]
    names["scores"] = evaluate(names["run"], TRUTH)
    models = {
        "all-MiniLM-L6-v2": str(bert), "naver/splade-v3": str(masked_bert),
        "colbert-ir/colbertv2.0": str(bert), "cross-encoder/ms-marco-MiniLM-L6-v2": str(pair_bert),
    }  # fmt: skip
    return World(names, models)


# Each line once, though several classes may have it.
LINES = {line: owner for owner, table in lines().items() for line in table.values()}


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_the_table_runs(
    line: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    owner = LINES[line]
    for module in ("llama_index_retriever", "haystack_retriever"):
        if module in line:
            pytest.importorskip(module.removesuffix("_retriever"))
    served: list[Path] = []
    # The module that an import finds: a package may still name one that another test replaced.
    start = importlib.import_module("sluice.retrieval.serving.processes.start")
    monkeypatch.setattr(start, "run_http", lambda folder, settings, said: served.append(folder))
    names = dict(world.names)
    names["retriever"] = copy.copy(names["dense" if "vector" in line else "bm25"])
    names["retriever"].save("folder")
    names["hybrid"] = copy.copy(names["bm25"]) | copy.copy(names["dense"])
    index = sluice.FlatIndex()
    index.add(names["vectors"])
    if "index" in line and "Retriever" not in line:
        names["index"] = index
        if "open_index" in line:
            names["path"] = "index"
            index.save("index")
    if owner == "Hits":
        names["hits"] = index.search(names["vectors"], 2)
    if "Run(results)" in line:
        names["results"] = names["bm25"].transform(pd_frame())
    if "mine(" in line or "load_dataset" in line:
        write_beir(tmp_path / "world")
        Retriever.build("bm25", load_dataset("world", split="train"), path="runs/bm25")
        line = line.replace("pydocs", "world").replace("scifact", "world")
    if "Run.load" in line:
        names["run"].save("run.trec")
    for model, folder in world.models.items():
        line = line.replace(model, folder)
    exec(line.replace("runs/tuned", str(tmp_path / "tuned")), names)
    assert bool(served) == (".serve(" in line)


def pd_frame() -> Any:
    import pandas as pd

    return pd.DataFrame({"qid": list(TOPICS), "query": list(TOPICS.values())})


def test_the_table_names_no_name_that_exists(world: World) -> None:
    owners = {"EncoderBase": "model", "CrossEncoder": "cross", "Stage": "hybrid", "Hit": "hit",
              "Document": "document", "Run": "run", "Scores": "scores", "sluice": "sluice",
              "BM25Encoder": "BM25Encoder"}  # fmt: skip
    of = {owner: world.names[name] for owner, name in owners.items()}
    of |= {"BM25Encoder": BM25Encoder(), "Index": sluice.FlatIndex(), "Hits": sluice.Hits([], [])}
    of |= {"Ranking": world.names["run"]["q1"]}  # type: ignore[dict-item]
    assert of.keys() == lines().keys() - {"options"}
    for owner, thing in of.items():
        table = lines()[owner]
        for name, line in table.items():
            assert not hasattr(thing, name), (owner, name)
            assert getattr(thing, name, 3) == 3
            with pytest.raises(AttributeError) as raised:
                getattr(thing, name)
            if owner != "EncoderBase" or type(thing).__name__ == "DenseEncoder":
                assert f"write: {line}" in str(raised.value), (owner, name)
    with pytest.raises(ImportError, match=r"write: retriever = Retriever.build\(\"bm25\""):
        from sluice import BM25Okapi  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from sluice import Nothing  # type: ignore[attr-defined] # noqa: F401
    for kind, name in ((Retriever, "load_local"), (Run, "from_file"), (sluice.DenseEncoder, "fit")):
        assert not hasattr(kind, name)
        with pytest.raises(AttributeError, match=f"{kind.__name__} has no '{name}'; write: "):
            getattr(kind, name)


def test_other_attributes_are_as_before(world: World) -> None:
    for name in ("hit", "document", "run", "model", "cross", "bm25", "hybrid", "scores"):
        thing = world.names[name]
        copied = copy.deepcopy(thing)
        assert type(copied) is type(thing)
        assert type(copy.copy(thing)) is type(thing)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = thing.nothing
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = type(thing).nothing
        if name not in ("bm25", "hybrid"):  # of temporary folders
            assert type(pickle.loads(pickle.dumps(thing))) is type(thing)

    class Broken(sluice.encoders.encoder.EncoderBase):
        @property
        def width(self) -> int:
            return None.missing  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'missing'"):
        _ = Broken().width
    for part in (world.names["bm25"], world.names["hybrid"]):  # callable, and still no scorer
        with pytest.raises(SluiceError, match="no score"):
            Rerank(part)
        with pytest.raises(SluiceError, match="expected an encoder"):
            Retriever.build(part, GOLD)


def test_models_have_the_names_of_sentence_transformers(
    world: World, bert: Path, masked_bert: Path, pair_bert: Path, tmp_path: Path
) -> None:
    import pandas as pd

    dense, splade = sluice.DenseEncoder(bert, device="cpu"), sluice.SpladeEncoder(str(masked_bert))
    own = sluice.DenseEncoder.from_pretrained(bert)
    for model in (dense, sluice.DenseEncoder(model_name_or_path=str(bert)), splade):
        whole = model.encode(GOLD)
        assert whole.shape == (4, model.dim)
        for several in (tuple(GOLD), np.array(GOLD), pd.Series(GOLD), iter(GOLD)):
            assert abs(model.encode_document(several) - whole).sum() == 0
        query = model.encode_query(GOLD[0])
        assert abs(model.encode(GOLD[0], prompt_name="query") - query).sum() == 0
        assert query.shape == ((1, model.dim) if model is splade else (model.dim,))
        matrix = model.similarity(query, whole)
        assert matrix.shape == (1, 4)
        assert matrix.argmax() == 0 or model is splade
    assert np.array_equal(dense.encode(GOLD), own.encode_documents(GOLD))
    assert dense.similarity == "cosine"
    assert splade.similarity == BM25Encoder().similarity == "dot"
    assert np.allclose(np.diag(dense.similarity(3 * whole.toarray(), whole.toarray())), 1)
    assert np.allclose(splade.similarity(whole, whole), whole.toarray() @ whole.toarray().T)
    assert sluice.DenseEncoder(bert, truncate_dim=8).encode("x").shape == (8,)
    dense.save(tmp_path / "model")
    assert np.array_equal(sluice.DenseEncoder.load(tmp_path / "model").encode("x"), own.encode("x"))
    for option, line in (
        ("convert_to_numpy", r"vectors = model.encode\(texts\)"), ("prompt", ".*query_prompt"),
        ("prompt_name", ".*query_prompt"), ("device", ".*device="), ("truncate_dim", ".*dim="),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"encode takes no {option}; write: {line}"):
            dense.encode(GOLD, **{option: False if "numpy" in option else "other"})
    with pytest.raises(TypeError, match=r"takes no max_seq_length; write: .*document_length"):
        sluice.DenseEncoder(bert, max_seq_length=3)
    assert str(inspect.signature(sluice.DenseEncoder)).startswith("(model: 'Any', tokenizer")
    cross = sluice.CrossEncoder(str(pair_bert), max_length=64)
    pairs = [("gold", text) for text in GOLD]
    scores = cross.score(pairs)
    for given in (pairs, np.array(pairs), [list(pair) for pair in pairs]):
        assert np.array_equal(cross.predict(given), scores)
    assert cross.predict(pairs[1]) == cross.predict([pairs[1]])[0]


def test_rank_is_that_of_sentence_transformers(pair_bert: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    ours = sluice.CrossEncoder(pair_bert)
    ours.save_pretrained(tmp_path / "model")
    theirs = library.CrossEncoder(str(tmp_path / "model"), device="cpu")
    for options in ({}, {"top_k": 2}, {"top_k": 9, "return_documents": True}):
        own, other = (each.rank("gold", GOLD, **options) for each in (ours, theirs))
        assert [each.keys() for each in own] == [each.keys() for each in other]
        assert [each["corpus_id"] for each in own] == [each["corpus_id"] for each in other]
        assert [each["score"] for each in own] == pytest.approx(
            [e["score"] for e in other], abs=1e-5
        )
        assert [each.get("text") for each in own] == [each.get("text") for each in other]
    passed = ours.rank("gold", GOLD, batch_size=2, show_progress_bar=False)
    whole = ours.rank("gold", GOLD)
    assert [each["corpus_id"] for each in passed] == [each["corpus_id"] for each in whole]
    with pytest.raises(TypeError, match=r"predict takes no activation_fn; .* probabilities"):
        ours.rank("gold", GOLD, activation_fn=len)


def test_options_of_encode_do_what_they_say(
    world: World, masked_bert: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    dense, cross = sluice.DenseEncoder(bert), world.names["cross"]
    splade, tokens = world.names["splade"], sluice.TokenEncoder(str(bert))
    passes: list[int] = []
    for kind in (sluice.DenseEncoder, sluice.SpladeEncoder):
        run = kind.output
        monkeypatch.setattr(
            kind, "output", lambda self, batch, *a, run=run: (
                passes.append(len(batch.rows)), run(self, batch, *a)
            )[1],
        )  # fmt: skip
    for model in (dense, splade):
        whole = model.encode(GOLD)
        passes.clear()
        halves = model.encode(GOLD, batch_size=2)
        assert passes == [2, 2]
        assert abs(halves - whole).max() < 1e-6
    assert len(tokens.encode(GOLD, batch_size=3)) == 4
    assert dense.encode([], batch_size=2).shape == (0, dense.dim)
    with pytest.raises(SluiceError, match="batch_size is 0"):
        dense.encode(GOLD, batch_size=0)
    tensor = dense.encode_query(GOLD, convert_to_tensor=True, convert_to_numpy=True)
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), dense.encode_query(GOLD))
    assert dense.encode("one", convert_to_tensor=True).shape == (dense.dim,)
    scores = cross.predict([("gold", text) for text in GOLD], batch_size=1, convert_to_tensor=True)
    assert np.allclose(scores.numpy(), cross.score([("gold", text) for text in GOLD]), atol=1e-6)
    dense.normalize = False
    long = dense.encode(GOLD)
    unit = dense.encode(GOLD, normalize_embeddings=True)
    assert not np.allclose(np.linalg.norm(long, axis=1), 1)
    assert np.allclose(unit * np.linalg.norm(long, axis=1)[:, None], long, atol=1e-5)
    for option in ("normalize_embeddings", "convert_to_tensor"):
        with pytest.raises(TypeError, match=f"encode takes no {option}; write: vectors"):
            splade.encode(GOLD, **{option: True})
    with pytest.raises(TypeError, match="predict takes no normalize_embeddings"):
        cross.predict([("gold", GOLD[0])], normalize_embeddings=True)
    seen: list[tuple[str, int, int | None]] = []
    sluice.show_progress(lambda *step: seen.append(step))
    try:
        dense.encode(GOLD, show_progress_bar=False)
        dense.encode(GOLD * 600, show_progress_bar=False)  # of so many it is shown otherwise
        assert seen == []
        dense.encode(GOLD, show_progress_bar=True, batch_size=3)
        assert seen == [("encode", 0, 4), ("encode", 3, 4), ("encode", 4, 4)]
    finally:
        sluice.show_progress(True)


def test_lengths_are_set_as_in_sentence_transformers(bert: Path, tmp_path: Path) -> None:
    model, short = sluice.DenseEncoder(bert), sluice.DenseEncoder(bert, document_length=6)
    assert model.max_seq_length == model.lengths["document"]
    before = model.fingerprint
    model.max_seq_length = 6
    assert np.array_equal(model.encode(GOLD), short.encode(GOLD))
    assert model.lengths == {"query": 6, "document": 6}
    assert model.fingerprint != before
    for length in (3, 6.5, 10_000):
        with pytest.raises(SluiceError, match="max_seq_length is"):
            model.max_seq_length = length  # type: ignore[assignment]
    tokens = sluice.TokenEncoder(bert, query_length=8, expand_queries=True)
    with pytest.raises(SluiceError, match="max_seq_length is 6, expected a whole number, 8 to"):
        tokens.max_seq_length = 6


def test_a_class_of_ones_own_is_called_as_it_is_written(bert: Path) -> None:
    class Own(sluice.DenseEncoder):
        def __init__(self, name: str, extra: int = 3) -> None:
            base = sluice.DenseEncoder(name)
            super().__init__(base.model, base.tokenizer)
            self.extra = extra

    class Plain(sluice.DenseEncoder):
        pass

    own = Own(str(bert), extra=4)
    assert (own.extra, Own(name=str(bert)).extra, own.encode("x").ndim) == (4, 3, 1)
    assert type(Plain(str(bert))) is Plain
    with pytest.raises(TypeError, match="takes no 'cpu'; write: model = Plain"):
        Plain(str(bert), "cpu")
    with pytest.raises(SluiceError, match="a network without its tokenizer"):
        sluice.DenseEncoder(own.model)


def test_frames_in_and_out_as_in_pyterrier(world: World) -> None:
    import pandas as pd

    bm25, hybrid, cross = (world.names[name] for name in ("bm25", "hybrid", "cross"))
    frame = pd_frame()
    for stage in (bm25, hybrid, bm25 % 2 >> cross):
        results = stage.transform(frame)
        assert list(results.columns) == ["qid", "docid", "docno", "rank", "score", "query"]
        assert results.equals(stage(frame))
        run = stage.run(TOPICS)
        assert dict(stage.run(frame)) == dict(run)
        assert results["docno"].tolist() == [name for hits in run.values() for name, _ in hits]
        assert results["rank"].tolist() == [
            rank for hits in run.values() for rank in range(len(hits))
        ]
        assert set(results["query"]) == set(TOPICS.values())
    assert bm25.transform(frame[["query"]])["qid"].unique().tolist() == ["0", "1"]
    assert bm25.transform(frame.assign(extra=1), k=1).shape == (2, 6)
    reranked = Rerank(cross).transform(bm25.transform(frame).assign(text="a text"))
    assert set(reranked["docno"]) == set(bm25.transform(frame)["docno"])
    assert bm25(TOPICS["q1"], k=1) == bm25.search(TOPICS["q1"], k=1)
    assert bm25.search(frame, k=1) == bm25.search(list(TOPICS.values()), k=1)
    with pytest.raises(SluiceError, match="expected qid, query"):
        bm25.transform(pd.DataFrame({"text": ["x"]}))
    pl = pytest.importorskip("polars")
    assert bm25.transform(pl.from_pandas(frame)).equals(bm25.transform(frame))
    for named in ({}, {"eval_metrics": ["map"], "names": ["a", "b"]}):
        with pytest.raises(TypeError, match=r"write: compare\(\{"):
            sluice.Experiment([bm25, hybrid], frame, TRUTH, **named)  # type: ignore[arg-type]
    assert sluice.RM3(bm25, fb_terms=5, fb_docs=2).terms == 5


def test_searched_as_in_pyserini_and_langchain(world: World) -> None:
    bm25, dense, hybrid = (world.names[name] for name in ("bm25", "dense", "hybrid"))
    for stage in (bm25, hybrid):
        lists = stage.batch_search(list(TOPICS.values()), [1, "b"], k=2, threads=4)
        assert lists == {
            "1": stage.search(TOPICS["q1"], 2), "b": stage.search(TOPICS["q2"], 2)
        }  # fmt: skip
        hits = stage.search("gold river", 2)
        for named in ({"top_k": 2}, {"n_results": 2}, {"limit": 2}):
            assert stage.search("gold river", **named) == hits
        assert stage.search(q="gold river", k=2) == hits
        assert [hit.doc_id for hit in stage.search("river", filter={"id": ["d3"]})] == ["d3"]
    with pytest.raises(TypeError, match="one argument twice"):
        bm25.search("gold", k=1, top_k=2)
    with pytest.raises(TypeError, match=r"takes no fields; write: search\(query, k, where, fuse"):
        bm25.search("gold", fields={"title": 1})
    with pytest.raises(SluiceError, match="id '1' occurs twice"):
        bm25.batch_search(list(TOPICS.values()), ["1", "1"])
    assert bm25.run(query=TOPICS["q1"], top_k=1) == bm25.run([TOPICS["q1"]], k=1)
    hit = hits[0]
    assert (hit.docid, hit.docno, hit.id, hit["docid"], hit["score"]) == (*[hit[0]] * 4, hit[1])
    assert hit.to_dict() == hit.as_dict()
    with pytest.raises(KeyError, match="there are doc_id"):
        hit["nothing"]
    assert bm25.doc("d1") == bm25.get("d1") == bm25["d1"]
    assert bm25["d1"]["text"] == bm25["d1"].text
    assert (bm25.doc("zz"), bm25.get("zz", 3), bm25.get(["d1"])) == (None, 3, [bm25["d1"]])
    vectors = world.names["vectors"]
    assert dense.search(vectors[1], k=2) == dense.search(vector=vectors[1], k=2)
    assert world.names["run"]["q1"]["d0"] == dict(world.names["run"]["q1"])["d0"]
    pytest.importorskip("langchain_core")
    found = bm25.as_retriever(search_kwargs={"k": 1, "filter": {"year": {"gt": 2001}}})
    assert [each.id for each in found.invoke("gold river")] == ["d3"]
    assert len(hybrid.as_retriever(k=2).invoke("gold river")) == 2
    with pytest.raises(TypeError, match=r"search_type; write: langchain = retriever.as_retriever"):
        bm25.as_retriever(search_type="mmr")


def test_built_from_what_others_have(bert: Path, world: World, tmp_path: Path) -> None:
    import pandas as pd

    found, model = world.names["documents"], world.names["model"]
    frame = pd.DataFrame({"body": GOLD, "key": list("abcd"), "year": 1})
    for built in (
        Retriever.build(frame, text="body", id="key"),
        Retriever.build("bm25", frame, text="body", id="key", metadata=["year"]),
        Retriever.from_texts(GOLD, ids=list("abcd"), metadatas=[{"year": 1}] * 4),
        Retriever.from_texts(texts=tuple(GOLD), ids=list("abcd")),
    ):
        assert [hit.doc_id for hit in built.search("gold")] == ["a"]
    assert built.search("gold", k=1)[0].metadata == {}
    one = Retriever.build(model, found).search("gold", 3)
    for again in (
        Retriever.from_documents(found, str(bert)), Retriever.build(documents=found, model=bert),
        Retriever.from_documents(documents=found, embedding=model),
    ):  # fmt: skip
        assert again.search("gold", 3) == one
    expected = world.names["hybrid"].search("gold river", 3)
    for encoders in (["bm25", str(bert)], ("bm25", model)):
        assert Retriever.build(encoders, found).search("gold river", 3) == expected
    hybrid = Retriever.build(["bm25", str(bert)], documents=found, path=tmp_path / "hybrid")
    assert sluice.open(tmp_path / "hybrid").search("gold river", 3) == hybrid.search(
        "gold river", 3
    )
    Retriever.build("bm25", found, path=tmp_path / "bm25").save_pretrained(tmp_path / "copy")
    for opened in (
        sluice.open(str(tmp_path / "copy")),
        Retriever.from_pretrained(tmp_path / "copy"),
    ):
        assert opened.search("gold") == world.names["bm25"].search("gold")
    vectors = world.names["vectors"]
    for given in (vectors, vectors.tolist(), vectors.astype(np.float64)):
        retriever = Retriever.from_vectors(given, ids=list("abcd"))
        assert retriever.search(vector=vectors[2], k=1)[0].docid == "c"
    assert Retriever.build("bm25", GOLD, ids=list("abcd")).search("gold")[0].docid == "a"
    texts = Retriever.from_vectors(embeddings=vectors, texts=GOLD, encoder=model)
    assert texts.search("gold", 1)[0].text == one[0].text
    kept = Retriever.build(world.names["bm25"])  # a retriever is a corpus as before
    assert len(kept) == 4
    for guess in (
        lambda: Retriever.build(found, "all-MiniLM-L6-v2"), lambda: Retriever.build(GOLD, "bm25"),
        lambda: Retriever.build(found, model), lambda: Retriever.build(found, str(bert)),
    ):  # fmt: skip
        with pytest.raises(SluiceError, match=r"write: retriever = Retriever.build\(encoder, doc"):
            guess()
    for made in (lambda: Retriever("x"), lambda: Retriever(encoder=model, documents=found)):
        with pytest.raises(TypeError, match=r"Retriever.build\(encoder, .*Retriever.open\(path\)"):
            made()
    for job in (sluice.index, sluice.run, sluice.train):
        with pytest.raises(SluiceError, match=r"write: retriever = Retriever.build\(documents\)"):
            job(found if job is not sluice.train else 3)  # type: ignore[operator]
    with pytest.raises(SluiceError, match=r"write: FlatIndex\(\)"):
        sluice.FlatIndex(32)  # type: ignore[arg-type]


def test_documents_of_other_libraries() -> None:
    from sluice.retrieval.documents.readers import as_documents

    facts = {"year": 1}
    for module, name, made in (
        ("langchain_core.documents", "Document", {"page_content": "gold", "id": "a"}),
        ("llama_index.core.schema", "TextNode", {"text": "gold", "id_": "a"}),
        ("haystack", "Document", {"content": "gold", "id": "a"}),
    ):
        kind = getattr(pytest.importorskip(module), name)
        given = kind(**made, **{"meta" if module == "haystack" else "metadata": facts})
        assert list(as_documents([given])) == [Document("a", "", "gold", facts)]


def test_measured_by_queries_and_qrels(world: World) -> None:
    import pandas as pd

    bm25, run = world.names["bm25"], world.names["run"]
    expected = evaluate(run, TRUTH, ["nDCG@10", "AP"])
    qrels = pd.DataFrame(
        [(query, name, grade) for query, each in TRUTH.items() for name, grade in each.items()],
        columns=["qid", "docno", "label"],
    )
    for scores in (
        evaluate(bm25, TOPICS, TRUTH, ["ndcg_cut_10", "map"]),
        evaluate(bm25, pd_frame(), qrels, ["nDCG@10", "AP"]),
        evaluate(bm25, queries=TOPICS, qrels=TRUTH, metrics=["nDCG@10", "AP"]),
        evaluate(bm25.transform(pd_frame()), qrels, ["nDCG@10", "AP"]),
        evaluate(bm25, TOPICS, TRUTH, measures=["nDCG@10", "AP"]),
        evaluate(pipeline=bm25, queries=TOPICS, qrels=TRUTH, measures=["nDCG@10", "AP"]),
        evaluate(run=run, qrels=TRUTH, metrics=["ndcg@10", "map"]),
        evaluate(Run.from_dict(run.to_dict()), TRUTH, ["nDCG@10", "AP"]),
    ):
        assert scores == expected
        assert scores["ndcg@10"] == scores.mean["nDCG@10"]
    assert list(evaluate(bm25, TOPICS, TRUTH).mean) == ["nDCG@10", "R@100"]
    with pytest.raises(SluiceError, match="qrels: no column label; expected qid, docno, label"):
        evaluate(run, qrels.rename(columns={"label": "grade"}))
    assert evaluate(bm25, list(TOPICS.values()), {"0": {"d0": 1}}, "RR@10")["RR@10"] == 1
    with pytest.raises(SluiceError, match="the run comes first; write: "):
        evaluate(TRUTH, run, ["nDCG@10"])
    for missing in (lambda: evaluate(bm25), lambda: evaluate(bm25, TRUTH)):
        with pytest.raises(SluiceError, match="write: scores = evaluate"):
            missing()
    with pytest.raises(SluiceError, match=r"write: compare\(\{"):
        compare([run, run], TRUTH)  # type: ignore[arg-type]


def test_queries_and_runs_in_other_forms(world: World) -> None:
    bm25, hybrid, run = (world.names[name] for name in ("bm25", "hybrid", "run"))
    rows = [{"qid": query, "query": text} for query, text in TOPICS.items()]
    for asked in (pd_frame(), rows, list(TOPICS.items())):
        assert dict(bm25.run(asked)) == dict(run)
        assert dict(hybrid.run(topics=asked, top_k=2)) == dict(hybrid.run(TOPICS, k=2))
        assert bm25.transform(asked).equals(bm25.transform(pd_frame()))
    lists = bm25.batch_search(TOPICS)
    assert lists == {query: bm25.search(text) for query, text in TOPICS.items()}
    assert Run(run.to_pandas()) == run
    assert Run(bm25.transform(pd_frame())) == run
    assert evaluate(bm25.transform(pd_frame()), TRUTH) == evaluate(run, TRUTH)
    measured = compare({"a": bm25, "b": hybrid}, TOPICS, TRUTH, ["nDCG@10"]).rows
    runs = {"a": run, "b": hybrid.run(TOPICS)}
    assert measured == compare(runs, TRUTH, metrics=["nDCG@10"]).rows
    with pytest.raises(TypeError, match="too many arguments; write: "):
        evaluate(run, TRUTH, ["AP"], ["AP"])
    with pytest.raises(SluiceError, match="no measure is named"):
        evaluate(run, TRUTH, measures=[])


def test_what_would_be_read_as_something_else(world: World) -> None:
    import pandas as pd

    model, cross = world.names["model"], world.names["cross"]
    for texts in (pd.DataFrame({"text": GOLD}), {"text": GOLD[0]}):
        with pytest.raises(TypeError, match=r"model.encode\(list\("):
            model.encode(texts)
    pairs = pd.DataFrame({"query": ["gold"], "document": [GOLD[0]]})
    assert np.array_equal(cross.predict(pairs), cross.score([("gold", GOLD[0])]))
    with pytest.raises(SluiceError, match="expected several: pass a list"):
        Retriever.build(GOLD).add({"id": "a", "text": "one document, not two"})
    with pytest.raises(SluiceError, match="are of one encoder"):
        Retriever.build(["bm25", model], GOLD, name="both")
    tokens = sluice.TokenEncoder(model.model.name_or_path)
    documents = tokens.encode(GOLD)
    assert tokens.similarity == "max_sim"
    assert tokens.similarity(tokens.encode_query("gold"), documents).shape == (1, 4)


def test_added_texts_get_the_next_numbers() -> None:
    retriever = Retriever.build(["one", "two"])
    assert retriever.add(["three", "four"]) == 2
    assert [each.id for each in retriever] == ["0", "1", "2", "3"]
    retriever.delete(ids=["1"])
    retriever.add([("5", "six")])
    retriever.add(("seven", "seven"))  # 5 rows so far, and 5 is in use
    assert [each.id for each in retriever] == ["0", "2", "3", "5", "6", "7"]
    retriever.add(documents=["named"], ids=["x"], metadatas=[{"year": 1}])
    assert retriever["x"] == Document("x", "", "named", {"year": 1})
    assert retriever.add([]) == 0
    with pytest.raises(SluiceError, match="'x'"):
        retriever.add(["again"], ids=["x"])
    with pytest.raises(SluiceError, match="no ids"):
        retriever.update(["an update needs to know which"])


def test_trained_on_pairs(bert: Path, pair_bert: Path, world: World, tmp_path: Path) -> None:
    pairs = world.names["pairs"]
    few: dict[str, Any] = {"max_steps": 4, "batch_size": 2}
    folder = sluice.train(str(bert), pairs, output=str(tmp_path / "named"), **few)
    model = sluice.DenseEncoder(bert)
    again = sluice.train(
        model, pairs=pairs, loss={"type": "info_nce"}, output=str(tmp_path / "made"),
        trainer={"max_steps": 4, "per_device_train_batch_size": 2},
    )  # fmt: skip
    one, two = (sluice.DenseEncoder(each).encode(GOLD) for each in (folder, again))
    assert np.allclose(one, two, atol=1e-6)
    assert not np.allclose(one, model.encode(GOLD), atol=1e-6)
    with pytest.raises(SluiceError, match="go with pairs"):
        sluice.train("train-dense.yaml", loss="info_nce")
    with pytest.raises(SluiceError, match="here it is called info_nce"):
        sluice.train(str(bert), pairs, loss="MultipleNegativesRankingLoss", output=str(tmp_path))


def test_stages_can_be_imported(world: World) -> None:
    from sluice.retrieval.pipelines.table import STAGES

    for name, place in STAGES.items():
        assert getattr(sluice, name) is resolve_name(place)
        assert getattr(sluice, name.title().replace("_", "")) in (
            getattr(sluice, name), *(getattr(sluice, each) for each in sluice.__all__)
        )  # fmt: skip
    from sluice import RM3, rm3

    assert RM3 is rm3
    assert RM3(world.names["bm25"]).search("gold")
    assert not set(STAGES) & set(dir(sluice))
    assert "open" not in dir(sluice)
