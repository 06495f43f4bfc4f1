"""Retrievers on disk, and what is built on them, against brute force through their changes."""

from __future__ import annotations

import pickle
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from formulas import scores_of
from fuzzing import Case
from numpy.typing import NDArray

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import fingerprint_of, write_json
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.indexing.table import INDEXES
from sluice.retrieval import Document, Fuse, Rerank, Retriever, Run, Stage
from sluice.retrieval.exchange.retriever_files import export_retriever, import_retriever
from sluice.retrieval.pipelines.fusion import Fusion
from sluice.retrieval.retrievers.folder import verify_retriever
from sluice.retrieval.stages.feedback.dense import prf

Matrix = NDArray[Any]
FLAT = {"type": "flat"}
DENSE: list[dict[str, Any]] = [  # exact, each by its metric
    FLAT, {**FLAT, "metric": "cosine"}, {**FLAT, "metric": "l2"}, {**FLAT, "first_pass": "int8"},
    {"type": "faiss", "factory": "Flat"}, {"type": "faiss", "factory": "IVF1,Flat"},
    {"type": "funnel", "dimensions": 6, "depth": 10_000}, {"type": "auto"},
]  # fmt: skip


class Counts:
    """An encoder of whole-number counts of hashed words: ties everywhere, exact in float32."""

    dim = 12
    fingerprint = fingerprint_of("counts of the fuzzer", dim)

    def encode_queries(self, texts: list[str]) -> Matrix:
        """Count the words of texts."""
        made = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                made[row, zlib.crc32(word.encode()) % self.dim] += 1
        return made

    encode_documents = encode_queries

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder that says nothing."""
        with replaced_folder(Path(path), ("counts.json",)) as folder:
            write_json(folder / "counts.json", {})

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Counts:
        """Return one: all are the same."""
        return cls()


class Lengths:
    """Scores a pair by the length of the document, with many ties."""

    name = fingerprint = "lengths"

    def score(self, pairs: list[tuple[str, str]]) -> list[float]:
        """Return the lengths by tens."""
        return [float(len(text) // 10) for _, text in pairs]


ALLOW = [f"{Counts.__module__}:Counts"]
WORDS = ["gold", "river", "stone", "water", "index", "term", "rank", "a", "b", "ab", "ba", "12"]
WORDS += ["naïve", "東京", "x\u0301", "don't", "🙂", "C++"]


def text(chance: random.Random, most: int = 12) -> str:
    """Return a few words, now and then none."""
    return " ".join(
        chance.choices(WORDS, k=chance.randint(0 if chance.random() < 0.1 else 1, most))
    )


class Corpus:
    """The documents that a retriever should have, in the order they were added."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.documents: dict[str, Document] = {}

    def new(self, count: int, known: float = 0.0) -> list[Document]:
        """Return documents of new ids, and a share of known ones."""
        chance, made = self.chance, dict[str, Document]()
        while len(made) < count:
            number = chance.randrange(9999)
            name = chance.choice((
                f"d{number}", f"d{number}", f"é{number}/x", f"ID:{number}", f"\U0001f600{number}",
                f"-{number}", f"{number % 99}", f"{number % 10}" * 40,
            ))  # fmt: skip
            if self.documents and chance.random() < known:
                name = chance.choice([*self.documents])
            elif name in self.documents:
                continue
            facts = {"year": chance.randrange(4), "lang": chance.choice(["en", "de"])}
            made[name] = Document(name, chance.choice(["", text(chance, 3)]), text(chance), facts)
        return [*made.values()]

    def change(self, does: str, retriever: Retriever) -> None:
        """Change a retriever and what is expected of it."""
        if does == "compact":
            retriever.compact()
        elif does == "delete":
            most = min(len(self.documents), self.chance.choice([1, 9]))
            gone = self.chance.sample([*self.documents], most)
            retriever.delete(gone)
            for each in gone:
                del self.documents[each]
        else:
            new = does == "add"
            more = self.new(self.chance.choice([1, 4, 20]), known=0.0 if new else 0.6)
            (retriever.add if new else retriever.update)(more)
            self.put(more)

    def put(self, documents: list[Document]) -> None:
        """Add or replace; what is replaced moves to the end."""
        for each in documents:
            self.documents.pop(each.id, None)
            self.documents[each.id] = each


def retrievers(case: Case) -> None:
    """A folder of documents through changes, and every pipeline over it."""
    chance = case.chance
    thin = chance.random() < 0.5
    encoder: Any = Counts()
    spec: dict[str, Any] = chance.choice(DENSE)
    if thin:
        encoder = BM25Encoder(k1=chance.choice([0.0, 0.9, 2.0]), b=chance.choice([0.0, 0.4, 1.0]))
        spec = {"type": "inverted", "block_size": chance.choice([None, 2, 16])}
    corpus, path = Corpus(chance), case.folder / "r"
    shards = chance.choice([None, None, None, 2, 3]) if thin or spec is FLAT else None

    def built() -> Retriever:
        given = list(corpus.documents.values())
        fresh = BM25Encoder(k1=encoder.k1, b=encoder.b) if thin else encoder
        index = build(spec, INDEXES, where="index")
        most = shards and min(shards, len(given))
        return Retriever.build(fresh, given, index=index, path=path, shards=most)

    roads: dict[str, Callable[[], Retriever]] = {
        "open": lambda: Retriever.open(path, allow=ALLOW),
        "pickle": lambda: pickle.loads(pickle.dumps(retriever)),
        "rebuild": lambda: built() if corpus.documents else retriever,
    }
    corpus.put(corpus.new(chance.choice([1, 5, 40, 120])))
    retriever = built()
    trail = [str(spec), str(len(corpus.documents)), f"shards {shards}"]
    for _ in range(chance.randint(2, 5)):
        does = chance.choice([*roads, "add", "update", "delete", "compact", "verify", "export"])
        trail.append(does)
        fault = ""
        if does in roads:
            retriever = roads[does]()
        elif does == "verify":
            verify_retriever(path, ALLOW)
        elif does == "export":
            fault = _exported(case, retriever) if thin and not shards and corpus.documents else ""
        else:
            corpus.change(does, retriever)
        fault = fault or _searched(case, retriever, corpus, thin, spec.get("metric", "ip"))
        kept = {each.id: each for each in retriever}
        if kept != corpus.documents or (not shards and [*kept] != [*corpus.documents]):
            fault = "other documents"
        if fault:
            case.wrong(fault, trail=trail)
            return


def _exported(case: Case, retriever: Retriever) -> str:
    """Export a retriever, import what was exported, and say how the two differ."""
    vectors, back = case.folder / "vectors", case.folder / "back"
    for each in (vectors, back):
        shutil.rmtree(each, ignore_errors=True)
    export_retriever(retriever, vectors, "vectors")
    other = import_retriever(vectors, back, "vectors")
    return "" if len(other) == len(retriever) else f"{len(other)} documents were imported"


def _searched(case: Case, retriever: Retriever, corpus: Corpus, thin: bool, metric: str) -> str:
    """Search by every road, and say what is wrong."""
    chance, documents = case.chance, list(corpus.documents.values())
    queries = {f"q{at}": text(chance, 5) for at in range(12)}
    queries["none"] = chance.choice(["", " ", "zzz"])
    left = retriever.encoder.encode_queries(list(queries.values()))
    right = retriever.encoder.encode_documents([each.full_text for each in documents])
    if thin:
        left, right = left.toarray(), right.toarray()
    blank = np.array([not query.strip() for query in queries.values()])
    truth = scores_of(left, right, metric) if documents else np.zeros((len(queries), 0))
    where, fits = chance.choice(WHERES)
    kept = np.array([fits(each) for each in documents], bool)
    for k, condition in ((chance.choice([1, 5, 2000]), None), (10, where)):
        run = retriever.run(queries, None, k, where=condition)
        case.tally.counts["searches"] += len(queries)
        mask = kept if condition else np.ones(len(documents), bool)
        for at, (name, ranking) in enumerate(run.items()):
            fits_query = mask & (truth[at] > 0) if thin else mask & ~blank[at]
            fault = _ranked(list(ranking), documents, truth[at], fits_query, k)
            if fault:
                return f"{queries[name]!r}, {k}, {condition}: {fault}"
    whole = retriever.run(queries)
    case.tally.counts["searches"] += len(queries)
    fed = not thin and metric == "ip"  # feedback adds vectors
    return _pipelines(case, retriever, queries, whole, fed) if documents else ""


WHERES: list[tuple[dict[str, Any], Callable[[Document], bool]]] = [
    ({"year": {"gte": 2}}, lambda each: each.metadata["year"] >= 2),
    ({"lang": "de"}, lambda each: each.metadata["lang"] == "de"),
    ({"lang": "en", "year": 1}, lambda each: dict(each.metadata) == {"year": 1, "lang": "en"}),
]


def _ranked(
    ranking: list[tuple[str, float]], documents: list[Document], truth: Matrix, fits: Matrix, k: int
) -> str:
    """Say what is wrong with a ranking: its k best by score, then by place; shown by id."""
    places = np.flatnonzero(fits)
    best = places[np.lexsort((places, -np.round(truth[places], 9)))][:k]
    if len(ranking) != len(best):
        return f"{len(ranking)} hits of {len(best)}"
    scores = np.array([score for _, score in ranking])
    if not np.allclose(scores, truth[best], rtol=2e-5, atol=1e-6):
        return f"scores {scores[:9].tolist()}, expected {truth[best][:9].tolist()}"
    right = {documents[place].id: truth[place] for place in places}
    if any(name not in right or not np.isclose(score, right[name], rtol=2e-5, atol=1e-6)
           for name, score in ranking):  # fmt: skip
        return f"ids {ranking[:9]}"
    names = [name for name, _ in sorted(sorted(ranking, reverse=True), key=lambda hit: -hit[1])]
    return "" if names == [name for name, _ in ranking] else f"ties: {ranking[:9]}"


def _pipelines(
    case: Case, retriever: Retriever, queries: dict[str, str], whole: Run, fed: bool
) -> str:
    """Run stages over a retriever, and compare them with what its own run gives by formula."""
    cut = case.chance.choice([1, 4, 30])
    first = retriever.run(queries, None, cut)  # of ties the first added, not the largest ids
    ways: list[tuple[str, Stage, Run]] = [
        ("cut", retriever % cut, first),
        ("rrf", retriever | retriever % cut, Fusion("rrf").fuse([whole, first])),
        (
            "weighted",
            Fuse([retriever, retriever % cut], method=Fusion("weighted", [0.3, 0.7])),
            Fusion("weighted", [0.3, 0.7]).fuse([whole, first]),
        ),
    ]
    for name, stage, expected in ways:
        found = stage.run(queries)
        case.tally.counts["searches"] += len(queries)
        if any(list(found[query]) != list(expected[query]) for query in queries):
            return f"{name} % {cut} is not that of its runs"
    depth = case.chance.choice([0, 2, 9])
    reranked = (retriever % cut >> Rerank(Lengths(), depth)).run(queries)
    for query, ranking in reranked.items():
        names = list(first[query].doc_ids)
        texts = dict(zip(names, retriever.store.texts(names), strict=True))
        head = sorted(names[:depth], key=lambda each: -(len(texts[each]) // 10))
        if list(ranking.doc_ids) != head + names[depth:]:
            return f"rerank at {depth}: {list(ranking.doc_ids)[:9]}, expected {head[:9]}"
    if fed:
        asked = prf(retriever, k=2).run(queries)
        if any(len(asked[query]) != len(whole[query]) for query in queries):
            return "prf: another number of hits"
    case.tally.counts["searches"] += 2 * len(queries)
    query = next(iter(queries.values()))
    hits = (retriever % cut).search(query, 5)
    expected = (retriever % cut).run({"q": query}, None, 5)["q"]
    if [(hit.doc_id, hit.score) for hit in hits] != list(expected):
        return f"search is not run: {hits[:3]}, {list(expected)[:3]}"
    if any(hit.text != retriever[hit.doc_id].text for hit in hits):
        return "a hit with another text"
    return ""
