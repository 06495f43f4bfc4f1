"""Files for databases: their documented rules, and the same hits computed from the files alone."""

import json
import math
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.exchange.adapters import database_files as parts
from sluice.retrieval.exchange.adapters.database_export import DATABASES, export_database
from sluice.retrieval.exchange.adapters.database_files import Record, Shape
from sluice.retrieval.exchange.adapters.lucene import OpenSearchForm

QUERIES = {"q1": "gold river word7", "q2": "stone sluice 3.14 100%", "blank": " ", "q4": "u.s. ü"}
ODD = [
    Document('a "quoted" \\ id', "t\n\u2028", "gold 3.14 100% u.s. ü \x00\x07", {"year": 2020}),
    Document(
        "../../etc/passwd?a=1&b#c", "", "river 100%25 stone", {"tags": ["x", "y"], "ok": True}
    ),
    Document("é" * 300, "", "the index of u.s. water " * 3, {"none": None}),
    Document("empty"),
]
TERMS = "opensearch", "elasticsearch", "vespa", "lancedb"
Metric = Any


@pytest.fixture(scope="module")
def corpus() -> list[Document]:
    return [*documents(), *ODD]


@pytest.fixture(scope="module")
def bm25(corpus: list[Document]) -> Retriever:
    made = Retriever.build(BM25Encoder(), [Document("gone", "", "gold gold"), *corpus])
    made.delete(["gone"])
    return made


@pytest.fixture(scope="module")
def dense(corpus: list[Document]) -> dict[Metric, Retriever]:
    backwards = corpus[::-1]
    return {
        metric: Retriever.build(WordEncoder(), backwards, index=FlatIndex(metric))
        for metric in ("ip", "cosine", "l2")
    }


def lines(folder: Path, ending: str = "ndjson") -> Iterator[Any]:
    for path in sorted(folder.glob(f"documents-*.{ending}")):
        data = path.read_bytes()
        assert data.endswith(b"\n") or not data
        yield from map(json.loads, data.decode("utf-8").split("\n")[:-1])


def requests(folder: Path) -> dict[str, Any]:
    asked = [
        json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()
    ]
    return {each.pop("id"): each for each in asked}


def read_bulk(folder: Path) -> list[dict[str, Any]]:
    """Bulk lines by the manuals' rules: an action with an ``_id``, and then the document."""
    pairs = list(lines(folder))
    sources = pairs[1::2]
    for action, source in zip(pairs[::2], sources, strict=True):
        assert list(action) == ["index"]
        assert list(action["index"]) == ["_id"]
        assert 0 < len(action["index"]["_id"].encode()) <= 512
        assert action["index"]["_id"] == source["id"] or len(source["id"].encode()) > 512
        for name, weight in source.get("impacts", {}).items():
            assert "." not in name
            assert weight >= 2**-126
    assert len({pair["index"]["_id"] for pair in pairs[::2]}) == len(sources)
    properties = json.loads((folder / "index.json").read_text())["mappings"]["properties"]
    assert all(source.keys() <= properties.keys() for source in sources)  # dynamic: strict
    return sources


def read_vespa(folder: Path) -> list[dict[str, Any]]:
    """Feed operations by the document JSON format; fields as the schema declares them."""
    schema = (folder / "schemas" / "doc.sd").read_text()
    assert schema.count("{") == schema.count("}")
    declared = dict(re.findall(r"field (\w+) type (\S+) \{", schema.replace(", ", ",")))
    found = []
    for put in lines(folder, "jsonl"):
        assert re.fullmatch(r"id:sluice:doc::[\w.~%-]+", put["put"])
        fields = put["fields"]
        assert fields.keys() <= declared.keys()
        strings = [fields["id"], fields.get("title", ""), fields.get("text", "")]
        assert not any(re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", each) for each in strings)
        assert all(
            type(weight) is int and weight > 0 for weight in fields.get("terms", {}).values()
        )
        assert (
            fields.get("terms", {}).keys() == fields.get("impacts", {"cells": {}})["cells"].keys()
        )
        fields["impacts"] = fields.get("impacts", {}).get("cells", {})
        fields["vector"] = fields.get("vector", {}).get("values")
        found.append(fields)
    return found


def read_weaviate(folder: Path) -> list[dict[str, Any]]:
    """Batches by the REST reference: objects of a class with a UUID, properties and a vector."""
    made = json.loads((folder / "schema.json").read_text())
    assert re.fullmatch("[A-Z][_0-9A-Za-z]*", made["class"])
    declared = {each["name"]: each["dataType"] for each in made["properties"]}
    assert not declared.keys() & {"id", "vector"}  # reserved
    found = []
    for path in sorted(folder.glob("documents-*.json")):
        batch = json.loads(path.read_text("utf-8"))
        for each in batch["objects"]:
            assert each["class"] == made["class"]
            assert str(uuid.UUID(each["id"])) == each["id"]
            for name, value in each["properties"].items():
                assert isinstance(value, list) == (declared[name] == ["text[]"])
            found.append({**each["properties"], "id": each["properties"]["doc_id"]} | {
                "vector": each["vector"]
            })  # fmt: skip
    return found


def read_lance(folder: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(folder / "documents.parquet").to_pylist()
    for row in rows:
        row["metadata"] = json.loads(row["metadata"])
        if "terms" in row:
            row["impacts"] = dict(zip(row["terms"], row["weights"], strict=True))
    return rows


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "opensearch": read_bulk, "elasticsearch": read_bulk, "vespa": read_vespa,
    "weaviate": read_weaviate, "lancedb": read_lance,
}  # fmt: skip


def sparse_query(form: str, body: Any) -> dict[str, float]:
    """The weights that a request sends, by the names that the documents have."""
    if form == "opensearch":
        return dict(body["query"]["neural_sparse"]["impacts"]["query_tokens"])
    if form == "elasticsearch":
        clauses = [clause["rank_feature"] for clause in body["query"]["bool"]["should"]]
        assert all(clause["linear"] == {} for clause in clauses)  # score: boost x weight
        return {each["field"].removeprefix("impacts."): each["boost"] for each in clauses}
    if form == "vespa":
        tensor = body["input.query(impacts)"]
        cells = re.findall(r'\{term:("(?:[^"\\]|\\.)*")\}:([^,}]+)', tensor)
        words = json.loads(body["yql"].partition("wand(terms, ")[2].removesuffix(")"))
        assert list(words) == [json.loads(term) for term, _ in cells]
        assert all(type(weight) is int and weight > 0 for weight in words.values())
        return {json.loads(term): float(weight) for term, weight in cells}
    return dict(body["query"])


def dense_query(form: str, body: Any) -> list[float]:
    if form == "opensearch":
        return list(body["query"]["knn"]["vector"]["vector"])
    if form == "elasticsearch":
        assert body["knn"]["k"] <= body["knn"]["num_candidates"] <= 10_000
        return list(body["knn"]["query_vector"])
    if form == "vespa":
        return list(body["input.query(vector)"])
    if form == "weaviate":
        return list(json.loads(re.findall(r"vector: (\[.*\])\}", body["query"])[0]))
    return list(body["query"])


def best(scores: dict[str, float], k: int = 10) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda hit: (np.float32(hit[1]), hit[0]), reverse=True)[:k]


def check_hits(found: list[tuple[str, float]], expected: Any) -> None:
    """Same scores in the same order; ids may change places where scores are within rounding."""
    assert len(found) == len(expected)
    own = dict(expected)
    for (name, score), (_, other) in zip(found, expected, strict=True):
        assert math.isclose(score, other, rel_tol=1e-5, abs_tol=1e-5)
        assert name not in own or math.isclose(score, own[name], rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.parametrize("form", TERMS)
def test_terms_give_the_same_hits(tmp_path: Path, bm25: Retriever, form: str) -> None:
    report = export_database(bm25, tmp_path / "x", form, queries=QUERIES)
    assert report.documents == 44
    assert "BM25's idf is in the documents' weights" in str(report)
    read = READERS[form](tmp_path / "x")
    assert [each["id"] for each in read] == [document.id for document in bm25]
    asked = requests(tmp_path / "x")
    assert list(asked) == ["q1", "q2", "q4"]
    for name, bodies in asked.items():
        assert list(bodies) == ["sparse"]
        query = sparse_query(form, bodies["sparse"])
        scores = {
            each["id"]: sum(weight * (each.get("impacts") or {}).get(term, 0.0)
                            for term, weight in query.items())
            for each in read
        }  # fmt: skip
        matching = {doc_id: score for doc_id, score in scores.items() if score > 0}
        expected = [hit for hit in bm25.run({name: QUERIES[name]}, k=10)[name] if hit[1] > 0]
        check_hits(best(matching), expected)
    assert {'a "quoted" \\ id'} <= {each["id"] for each in read}


@pytest.mark.parametrize("form", DATABASES)
@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
def test_vectors_give_the_same_hits(
    tmp_path: Path, dense: dict[Metric, Retriever], form: str, metric: str
) -> None:
    made = dense[metric]
    export_database(made, tmp_path / "x", form, queries=QUERIES)
    read = READERS[form](tmp_path / "x")
    ids = [each["id"] for each in read]
    assert ids == [document.id for document in made]
    matrix = np.array([each["vector"] for each in read])
    stored = np.asarray(made.index.documents(np.arange(made.index.rows)))
    if metric != "cosine":
        assert matrix.astype(np.float32).tobytes() == stored.tobytes()
    for name, bodies in requests(tmp_path / "x").items():
        query = np.array(dense_query(form, bodies["dense"]))
        scores = matrix @ query if metric != "l2" else -((matrix - query) ** 2).sum(axis=1)
        expected = made.run({name: QUERIES[name]}, k=10)[name]
        check_hits(best(dict(zip(ids, scores.tolist(), strict=True))), list(expected))


@pytest.mark.parametrize("form", TERMS)
def test_both_go_into_one_document(
    tmp_path: Path, bm25: Retriever, dense: dict[Metric, Retriever], form: str
) -> None:
    """The two retrievers have their documents in different orders."""
    report = export_database(
        bm25, tmp_path / "x", form, beside=dense["ip"], queries={"q": "gold river"}
    )
    assert "vectors of 64 dimensions (ip); weights of terms" in str(report)
    index, store = dense["ip"].index, dense["ip"].store
    for each in READERS[form](tmp_path / "x"):
        stored = index.documents(store.rows([each["id"]]))[0]
        assert np.array_equal(np.float32(each["vector"]), stored)
    assert set(requests(tmp_path / "x")["q"]) == {"dense", "sparse"}
    with pytest.raises(ConfigError, match="sparse, and so is"):
        export_database(bm25, tmp_path / "y", form, beside=bm25)
    other = Retriever.build(WordEncoder(), [Document("z", "", "gold")])
    with pytest.raises(DataError, match="1 documents"):
        export_database(bm25, tmp_path / "y", form, beside=other)
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("form", DATABASES)
def test_texts_and_metadata_arrive(
    tmp_path: Path, dense: dict[Metric, Retriever], form: str
) -> None:
    report = export_database(dense["ip"], tmp_path / "x", form)
    read = {each["id"]: each for each in READERS[form](tmp_path / "x")}
    assert sorted(read) == sorted(document.id for document in dense["ip"])
    odd = read[ODD[0].id]
    assert odd["title"] == ODD[0].title
    lost = form == "vespa"
    assert odd["text"] == (re.sub("[\x00\x07]", " ", ODD[0].text) if lost else ODD[0].text)
    assert report.replaced == (2 if lost else 0)
    assert not read["empty"].get("text")
    whole = form not in ("vespa", "weaviate")
    assert odd["metadata"] == ({"year": 2020} if whole else ["year=2020"])
    tags = {"tags": ["x", "y"], "ok": True} if whole else ["tags=x", "tags=y", "ok=true"]
    assert read[ODD[1].id]["metadata"] == tags


@pytest.mark.parametrize("form", ["opensearch", "elasticsearch", "vespa", "weaviate"])
def test_templates_become_the_requests(
    tmp_path: Path, bm25: Retriever, dense: dict[Metric, Retriever], form: str
) -> None:
    beside = bm25 if form in TERMS else None
    export_database(dense["ip"], tmp_path / "x", form, beside=beside, queries={"q": "gold river"})
    for kind, body in requests(tmp_path / "x")["q"].items():
        template = (tmp_path / "x" / f"query-{kind}.json").read_text()
        query: Any = dense_query(form, body) if kind == "dense" else sparse_query(form, body)
        size = "10"
        if (form, kind) == ("elasticsearch", "sparse"):
            query = body["query"]["bool"]["should"]
        if (form, kind) == ("vespa", "sparse"):
            words = body["yql"].partition("wand(terms, ")[2].removesuffix(")")
            template = template.replace("{{query}}", json.dumps(words)[1:-1])
            impacts = json.dumps(body["input.query(impacts)"])[1:-1]
            template = template.replace("{{impacts}}", impacts)
        filled = json.loads(
            template.replace("{{query}}", json.dumps(query)).replace("{{size}}", size)
        )
        for each in (filled, body):  # how many are gathered follows from the size
            each.get("knn", {}).pop("num_candidates", None)
            each["yql"] = re.sub("targetHits: [0-9]+", "", each.get("yql", ""))
        assert filled == body


def test_files_are_of_bounded_size(
    tmp_path: Path, dense: dict[Metric, Retriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 4_000)
    for form in ("opensearch", "weaviate"):
        export_database(dense["ip"], tmp_path / form, form)
        files = sorted((tmp_path / form).glob("documents-*"))
        assert len(files) > 2
        assert max(file.stat().st_size for file in files) < 4_000 + 20
        assert len(READERS[form](tmp_path / form)) == 44


def test_empty_collections(tmp_path: Path) -> None:
    made = Retriever.build(WordEncoder(), [])
    for form in DATABASES:
        report = export_database(made, tmp_path / form, form, queries={})
        assert report.documents == 0
        assert READERS[form](tmp_path / form) == []


def test_what_cannot_be_written(tmp_path: Path, bm25: Retriever) -> None:
    with pytest.raises(ConfigError, match="weights of terms, which weaviate cannot hold"):
        export_database(bm25, tmp_path / "x", "weaviate")
    with pytest.raises(ConfigError, match="did you mean 'opensearch'"):
        export_database(bm25, tmp_path / "x", "opensaerch")
    bell = Retriever.build(BM25Encoder(), [Document("a\x07b", "", "gold")])
    with pytest.raises(DataError, match=r"its id holds U\+0007"):
        export_database(bell, tmp_path / "x", "vespa")
    form = OpenSearchForm(Shape(0, "ip", 1.0))
    entry = form.entry(Record(Document("a"), None, {"x" * 40_000: 1.0, "gold": 1.0, "low": 1e-40}))
    assert json.loads(entry.splitlines()[1])["impacts"] == {"gold": 1.0}
    assert form.left_out == 2
    assert not (tmp_path / "x").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("keep")
    with pytest.raises(ConfigError, match="'file' but no export"):
        export_database(bm25, tmp_path / "mine", "vespa")
    assert (tmp_path / "mine" / "file").read_text() == "keep"


def test_the_command(
    tmp_path: Path, sluice: Call, bm25: Retriever, dense: dict[Metric, Retriever]
) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q", "text": "gold river"}\n')
    words = ["export", bm25.path, tmp_path / "x", "--format", "elasticsearch"]
    both = ["--with", dense["cosine"].path, "--allow", "small_world:WordEncoder"]
    code, out, err = sluice(*words, *both, "--queries", queries)
    assert code == 0, err
    assert out.startswith(f"{tmp_path}/x: 44 documents; vectors of 64")
    assert set(requests(tmp_path / "x")["q"]) == {"dense", "sparse"}
    code, _, err = sluice(*words, "--scale", "2")
    assert code == 2
    assert "scale" in err
    assert "not for --format elasticsearch" in err
    code, _, err = sluice(*words[:3], "--format", "ciff", "--with", dense["ip"].path)
    assert code == 2
    assert "--with" in err
