"""Hubs: log-normalisers, the inverted softmax static and dynamic, one bank and two, skewness."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from small_world import WordEncoder, documents, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FaissIndex, FlatIndex, InvertedIndex, PassageIndex
from sluice.retrieval import Document, Retriever, Run, Stage
from sluice.retrieval.evaluation.measures import hubness
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.stages.hub_normaliser import Normaliser, log_normalisers
from sluice.retrieval.stages.hubs import Normalised, bank_queries

BETA = 20.0


class Told:
    """An encoder that knows the vector of every text."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.vectors = vectors

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("told", len(self.vectors))

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([self.vectors[text] for text in texts], np.float32)

    encode_documents = encode_queries

    def save_pretrained(self, path: str | Path) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "told.json").write_text("{}")


class World:
    """400 documents and as many queries near them, all pulled one way; 5 documents lie there."""

    def __init__(self, count: int = 400, width: int = 32, hubs: int = 5) -> None:
        rng = np.random.default_rng(0)

        def unit(vectors: np.ndarray) -> np.ndarray:
            lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
            scaled: np.ndarray = (vectors / lengths).astype(np.float32)
            return scaled

        own = unit(rng.standard_normal((count, width)))
        pull = unit(rng.standard_normal(width))

        def asked(which: np.ndarray) -> np.ndarray:
            noise = rng.standard_normal((len(which), width)) / np.sqrt(width)
            return unit(own[which] + 2.0 * noise + 1.5 * pull)

        self.queries = asked(np.arange(count))
        self.bank = asked(rng.integers(0, count, 2 * count))
        near = pull + 0.3 * rng.standard_normal((hubs, width)) / np.sqrt(width)
        self.documents = np.concatenate([own, unit(near)])
        self.count = count
        vectors = {f"q{i}": v for i, v in enumerate(self.queries)}
        vectors |= {f"b{i}": v for i, v in enumerate(self.bank)}
        vectors |= {f"d{i}": v for i, v in enumerate(self.documents)}
        self.asked = {f"q{i}": f"q{i}" for i in range(count)}
        self.texts = [f"b{i}" for i in range(len(self.bank))]
        corpus = [Document(f"d{i}", "", f"d{i}") for i in range(len(self.documents))]
        self.retriever = Retriever.build(Told(vectors), corpus, name="told")

    def right(self, run: Run) -> float:
        return float(np.mean([run[q].doc_ids[0] == f"d{q[1:]}" for q in self.asked]))

    def hub_hits(self, run: Run) -> int:
        return sum(int(run[q].doc_ids[0][1:]) >= self.count for q in self.asked)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def normaliser(world: World) -> Normaliser:
    return Normaliser.fit(world.retriever, world.texts, beta=BETA)


def inverted_softmax(similarities: np.ndarray, bank: np.ndarray, beta: float) -> np.ndarray:
    """By its definition, in float64."""
    total = np.exp(beta * bank.astype(np.float64)).sum(axis=0)
    found: np.ndarray = np.exp(beta * similarities.astype(np.float64)) / total
    return found


def order_of(run: Run, queries: Sequence[str]) -> list[list[int]]:
    return [[int(doc[1:]) for doc in run[query].doc_ids] for query in queries]


def agree(found: list[list[int]], scores: np.ndarray) -> None:
    """The order is that of the scores, but for neighbours that float32 cannot tell apart."""
    for places, line in zip(found, scores, strict=True):
        assert sorted(places) == list(range(len(line)))
        assert (np.diff(line[places]) <= 2e-6 * np.abs(line).max()).all()


def test_synthetic_hubs(world: World, normaliser: Normaliser) -> None:
    raw = world.retriever.run(world.asked, None, 10)
    runs = {
        mode: Normalised(world.retriever, normaliser, mode=mode).run(world.asked, None, 10)
        for mode in ("dynamic", "static")
    }
    size = len(world.documents)
    before = hubness(raw, documents=size)
    assert world.right(raw) < 0.2
    assert world.hub_hits(raw) > 200
    assert before.skewness > 6
    for run in runs.values():
        after = hubness(run, documents=size)
        assert world.right(run) > world.right(raw) + 0.2
        assert world.hub_hits(run) < 30
        assert after.skewness < before.skewness / 2
        assert after.never < before.never
    assert {doc for doc, _ in before.hubs[:5]} == {f"d{400 + i}" for i in range(5)}


def test_static_is_the_inverted_softmax(world: World, normaliser: Normaliser) -> None:
    stage = Normalised(world.retriever, normaliser, mode="static", depth=10_000)
    run = stage.run(world.asked, None, 10_000)
    expected = inverted_softmax(
        world.queries @ world.documents.T, world.bank @ world.documents.T, BETA
    )
    agree(order_of(run, list(world.asked)), np.log(expected))


def test_dynamic_normalises_where_the_first_hit_is_a_hub(
    world: World, normaliser: Normaliser
) -> None:
    similar, bank = world.queries @ world.documents.T, world.bank @ world.documents.T
    hubs = np.unique(bank.argmax(axis=1))
    np.testing.assert_array_equal(np.flatnonzero(normaliser.banks[0].hubs), hubs)
    on = np.isin(similar.argmax(axis=1), hubs)
    assert 0 < on.sum() < len(on)
    with tracing() as spans:
        run = Normalised(world.retriever, normaliser, depth=10_000).run(world.asked, None, 10_000)
    assert spans[0].facts["normalised"] == {f"q{i}": (bool(x),) for i, x in enumerate(on)}
    mixed = np.where(on[:, None], np.log(inverted_softmax(similar, bank, BETA)), similar)
    agree(order_of(run, list(world.asked)), mixed)
    raw = world.retriever.run(world.asked, None, 10_000)
    for query, changed in zip(world.asked, on, strict=True):
        assert changed or run[query] == raw[query]
    normal = np.concatenate([run[f"q{i}"].scores for i in np.flatnonzero(on)])
    assert abs(normal.mean() - similar.mean()) < 0.1  # on the scale of the others


def test_two_banks(world: World) -> None:
    fit = Normaliser.fit(
        world.retriever, world.texts, beta=10, documents=100, document_beta=5.0, hub_depth=2, seed=4
    )
    chosen = np.sort(np.random.default_rng(4).permutation(len(world.documents))[:100])
    similar, bank = world.queries @ world.documents.T, world.bank @ world.documents.T
    second = (world.documents[chosen] @ world.documents.T).astype(np.float64)
    second[np.arange(100), chosen] = -np.inf
    counts = 100 - np.isin(np.arange(len(world.documents)), chosen)
    both = inverted_softmax(similar, bank, 10) * (
        np.exp(5.0 * similar) / (np.exp(5.0 * second).sum(axis=0) / counts)
    )
    run = Normalised(world.retriever, fit, mode="static", depth=9999).run(world.asked, None, 9999)
    agree(order_of(run, list(world.asked)), np.log(both))
    first_hubs = np.unique(np.argsort(-bank, axis=1)[:, :2])
    second_hubs = np.unique(np.argsort(-second, axis=1)[:, :2])
    np.testing.assert_array_equal(np.flatnonzero(fit.banks[0].hubs), first_hubs)
    np.testing.assert_array_equal(np.flatnonzero(fit.banks[1].hubs), second_hubs)
    with tracing() as spans:
        Normalised(world.retriever, fit).run(world.asked, None, 10)
    best = similar.argmax(axis=1)
    assert list(spans[0].facts["normalised"].values()) == [
        (bool(a), bool(b))
        for a, b in zip(np.isin(best, first_hubs), np.isin(best, second_hubs), strict=True)
    ]
    one = fit.shifts((False, True))
    np.testing.assert_allclose(one, -fit.banks[1].log_normalisers / 5.0, rtol=1e-5)
    assert not fit.shifts((False, False)).any()


@pytest.mark.parametrize("inner", [{"type": "flat"}, {"type": "faiss", "factory": "IVF4,Flat"}])
def test_the_normaliser_in_the_index(
    world: World, normaliser: Normaliser, inner: dict[str, Any]
) -> None:
    index = normaliser.augmented(world.retriever, inner)
    params = {"nprobe": 4} if inner["type"] == "faiss" else {}
    hits = index.search(world.queries, 10, params=params)
    run = Normalised(world.retriever, normaliser, mode="static", depth=9999).run(
        world.asked, None, 10
    )
    shifted = world.queries @ world.documents.T + normaliser.shifts([True])
    np.testing.assert_allclose(hits.scores, -np.sort(-shifted, axis=1)[:, :10], atol=1e-5)
    same = np.array(order_of(run, list(world.asked))) == hits.rows
    assert same.mean() > 0.99
    np.testing.assert_allclose(
        np.stack([run[q].scores for q in world.asked]), hits.scores, atol=1e-5
    )


def test_a_constant_bank_changes_nothing(world: World) -> None:
    vectors = {**world.retriever.encoder.vectors, "zero": np.zeros(32, np.float32)}
    rebuilt = Retriever.build(
        Told(vectors),
        [Document(f"d{i}", "", f"d{i}") for i in range(400)],
    )
    fit = Normaliser.fit(rebuilt, ["zero"] * 3)
    assert not fit.banks[0].log_normalisers.any()
    raw = rebuilt.run(world.asked, None, 50)
    assert dict(Normalised(rebuilt, fit, mode="static").run(world.asked, None, 50)) == dict(raw)


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2", None])
@pytest.mark.parametrize("entries", [1, 500, 1 << 22])
def test_log_normalisers_by_definition(metric: Any, entries: int) -> None:
    rng = np.random.default_rng(1)
    docs = np.abs(rng.standard_normal((60, 8))).astype(np.float32)
    bank = np.abs(rng.standard_normal((7, 8))).astype(np.float32)
    index: Any = InvertedIndex() if metric is None else FlatIndex(metric)
    given: Any = bank
    if metric is None:
        index.add(sparse.csr_array(docs))
        given = sparse.csr_array(bank)
    else:
        index.add(docs)
    similar = index.search(given, 60)
    table = np.zeros((7, 60))
    np.put_along_axis(table, similar.rows, similar.scores.astype(np.float64), axis=1)
    found = log_normalisers(index, given, 300.0 if metric != "l2" else 3.0, entries=entries)
    scaled = table * (300.0 if metric != "l2" else 3.0)
    expected = np.logaddexp.reduce(scaled, axis=0) - np.log(7)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_fit_is_a_folder(tmp_path: Path, world: World, normaliser: Normaliser) -> None:
    normaliser.save(tmp_path / "hubs")
    opened = Normaliser.load(tmp_path / "hubs")
    assert opened.facts == normaliser.facts
    for one, other in zip(opened.banks, normaliser.banks, strict=True):
        assert one.beta == other.beta
        np.testing.assert_array_equal(one.log_normalisers, other.log_normalisers)
        np.testing.assert_array_equal(one.hubs, other.hubs)
    expected = Normalised(world.retriever, normaliser).run(world.asked, None, 10)
    assert dict(Normalised(world.retriever, opened).run(world.asked, None, 10)) == dict(expected)
    normaliser.save(tmp_path / "hubs")
    (tmp_path / "hubs" / "hubs-0.npy").write_bytes(b"")
    with pytest.raises(IndexFormatError, match="hubs-0"):
        Normaliser.load(tmp_path / "hubs")
    (tmp_path / "hubs" / "normaliser.json").write_text("[]")
    with pytest.raises(IndexFormatError, match=r"expected .* 'sluice\.normaliser'"):
        Normaliser.load(tmp_path / "hubs")


def test_a_bank_file_that_changed_is_fitted_anew(tmp_path: Path) -> None:
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    bank, folder = tmp_path / "bank.txt", tmp_path / "hubs"
    text = f"normalised(dense, bank='{bank}', fitted='{folder}', mode='static')"
    for queries in ("gold river\n", "stone water\nindex term\n"):
        bank.write_text(queries)
        parse(text, {"dense": lambda: dense}).run({"a": "gold river"})
        assert Normaliser.load(folder).facts["queries"] == len(queries.splitlines())


def test_expression_with_a_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_beir(tmp_path / "data")
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    names = {"dense": lambda: dense}
    queries = {"a": "gold river", "b": "", "c": "number 7"}
    text = f"normalised(dense, bank='{data}', fitted='{tmp_path / 'hubs'}', mode='static', beta=2)"
    stage = parse(text, names)
    assert not (tmp_path / "hubs").exists()  # nothing is done before a search
    found = stage.run(queries, None, 5)
    bank = bank_queries(str(data))
    assert len(bank) == 12
    fit = Normaliser.fit(dense, bank, beta=2)
    assert dict(found) == dict(Normalised(dense, fit, mode="static").run(queries, None, 5))
    assert len(found["b"]) == 0
    assert len(found["a"]) == 5

    fitted: list[int] = []
    real = Normaliser.fit.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, *parts: Any, **options: Any) -> Any:
        fitted.append(1)
        return real(cls, *parts, **options)

    monkeypatch.setattr(Normaliser, "fit", classmethod(counted))
    assert dict(parse(text, names).run(queries, None, 5)) == dict(found)
    only = f"normalised(dense, fitted='{tmp_path / 'hubs'}', mode='static')"
    assert dict(parse(only, names).run(queries, None, 5)) == dict(found)
    assert not fitted
    parse(text.replace("beta=2", "beta=3"), names).run(queries, None, 5)
    assert fitted == [1]
    excluded = parse(only, names).run(SelfExcluding({"d00": "gold river"}), None, 40)["d00"]
    assert "d00" not in excluded.doc_ids
    assert len(excluded) == 39


def test_filters_and_changes() -> None:
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    fit = Normaliser.fit(dense, ["gold river", "the number"], documents=5)
    stage = Normalised(dense, fit, mode="static")
    queries = {"a": "gold river"}
    everything = stage.run(queries, None, 40)["a"]
    assert len(everything) == 40
    assert stage.search("gold river", 1)[0].text
    dense.delete([everything.doc_ids[0]])
    assert stage.run(queries, None, 40)["a"] == everything[1:]
    assert Normaliser.fit(dense, ["gold"], documents=99).banks[1].beta == 20
    with pytest.raises(ConfigError, match="without deleted documents"):
        fit.augmented(dense, FlatIndex())
    dense.add([Document("new", "", "gold river")])
    with pytest.raises(ConfigError, match="fitted to another encoder or to other documents"):
        stage.run(queries, None, 5)
    dense.add([Document("label", "", "gold", {"lang": "en"})])
    filtered = Normalised(dense, Normaliser.fit(dense, ["gold"])).filtered({"lang": "en"})
    assert isinstance(filtered, Normalised)
    assert list(filtered.run(queries, None, 5)["a"].doc_ids) == ["label"]
    sparse_one = Retriever.build(BM25Encoder(), documents(), name="bm25")
    fit = Normaliser.fit(sparse_one, ["gold river", "the number"], beta=0.5)
    assert len(Normalised(sparse_one, fit, mode="static").run(queries, None, 5)["a"]) == 5


def test_what_cannot_be_normalised(tmp_path: Path) -> None:
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    names: dict[str, Any] = {"dense": lambda: dense}
    path = tmp_path / "bank.jsonl"
    path.write_text('{"text": "gold"}\n{"txt": 1}\n')
    for text, error, message in [
        ("normalised(dense)", ConfigError, "needs bank=, a dataset or a file"),
        ("normalised(dense, fitted='nowhere')", ConfigError, "no normaliser in 'nowhere'"),
        ("normalised(dense, bank='x.txt', mode='dynamc')", ConfigError, "did you mean 'dynamic'"),
        ("normalised(dense, bank='x.txt', beta=0)", ConfigError, "beta: 0"),
        ("normalised(dense, bank='x.txt', depth=0)", ConfigError, "depth"),
        ("normalised(dense, bank='x.txt', documents=-1)", ConfigError, "documents"),
    ]:
        with pytest.raises(error, match=message):
            parse(text, names)
    for bank, kind, message in [
        ("missing.txt", ConfigError, "no file 'missing.txt'"),
        (str(path), DataError, "jsonl:2: expected a JSON object"),
        ("no-such-dataset", DataError, "no-such-dataset"),
    ]:
        with pytest.raises(kind, match=message):
            parse(f"normalised(dense, bank={bank!r})", names).run({"a": "gold"})
    (tmp_path / "bank.txt").write_text("gold\n\nriver\n")
    assert bank_queries(str(tmp_path / "bank.txt")) == ["gold", "river"]
    (tmp_path / "long.txt").write_text("\n".join(f"query {i}" for i in range(6000)))
    assert len(bank_queries(str(tmp_path / "long.txt"))) == 5000

    class Own(Stage):
        name = "own"

        def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
            return Run({})

    with pytest.raises(ConfigError, match="needs a retriever itself"):
        Normalised(Own(), Normaliser.fit(dense, ["gold"])).run({"a": "gold"})
    with pytest.raises(ConfigError, match="bank: no queries in it"):
        Normaliser.fit(dense, [" "])
    with pytest.raises(ConfigError, match="document_beta: 0"):
        Normaliser.fit(dense, ["gold"], document_beta=0)
    with pytest.raises(ConfigError, match="expected at least 2"):
        Normaliser.fit(dense, ["gold"], documents=1)
    with pytest.raises(ConfigError, match="several passages has no single vector"):
        log_normalisers(PassageIndex(FlatIndex()), np.zeros((1, 2), np.float32), 1.0)
    quantised = FaissIndex("PQ4x4")
    rng = np.random.default_rng(0)
    quantised.train(rng.standard_normal((200, 8)).astype(np.float32))
    quantised.add(rng.standard_normal((200, 8)).astype(np.float32))
    assert log_normalisers(quantised, rng.standard_normal((3, 8)), 1.0).shape == (200,)
