"""Every stage keeps the rules that ``sluice.retrieval.testing`` ships."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_language_models import Echo, FakeModel
from places import ROOT
from small_world import WordEncoder, documents
from token_functions import token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.dense.error_adapter import PairHead
from sluice.encoders.foundation.build import resolve
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Fuse, Rerank, Retriever, Run, Stage
from sluice.retrieval.experiments.tuning.ranker_training import judged
from sluice.retrieval.pipelines.asking import Asked, Asking
from sluice.retrieval.pipelines.fitting.choice import Unfitted
from sluice.retrieval.pipelines.fitting.fitter import fit_on
from sluice.retrieval.pipelines.fusion.fusion import METHODS
from sluice.retrieval.pipelines.table import DEPTH_RULES, STAGES
from sluice.retrieval.retrievers.candidate_lists import Sources
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.stages.adaptive_depth import cut_off
from sluice.retrieval.stages.confidence_exit import exit_rule
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import Listwise, Pairwise
from sluice.retrieval.stages.ltr.ranker import LearnedRanker, part_fingerprint
from sluice.retrieval.stages.ltr.reranker import CandidateFeatures
from sluice.retrieval.stages.rerankers.long_documents import by_passages
from sluice.retrieval.stages.rerankers.similarity import MaxSim
from sluice.retrieval.stages.rerankers.stored_vectors import StoredMaxSim
from sluice.retrieval.testing import check_stage

CORPUS = [
    Document(each.id, each.title, each.text, {"odd": place % 2 == 1})
    for place, each in enumerate(documents())
]
TEXTS = {each.id: each.full_text for each in CORPUS}
QUERIES = {"b": "gold river number", "a": "vector of stone", "c": "sluice of the water"}
QRELS = {"a": {"d02": 1, "d12": 1}, "b": {"d00": 2, "d10": 1}, "c": {"d04": 1}}


class Overlap:
    """Shared words of the pair."""

    fingerprint = "overlap"

    def score(self, pairs: Any) -> list[float]:
        return [float(len({*q.lower().split()} & {*d.lower().split()})) for q, d in pairs]


class World(NamedTuple):
    bm25: Retriever
    dense: Retriever
    folder: Path
    tokens: Retriever
    parts: Retriever  # BM25 over passages
    dense_parts: Retriever  # a shard of documents in passages, and another

    def options(self, name: str) -> dict[str, Any]:
        """What a stage of the table must be told."""
        folder = self.folder
        if name == "abstain":
            return {"threshold": 0.3, "kind": "top"}
        if name == "synonyms":
            (folder / "synonyms.txt").write_text("gold, stone\nsluice => the water\n")
            return {"file": str(folder / "synonyms.txt")}
        if name == "cached":
            return {"file": str(folder / "scores.sqlite")}
        if name == "pair_head":
            PairHead(64, 4).save(folder / "pairs")
            return {"model": str(folder / "pairs")}
        if name == "normalised":
            (folder / "bank.txt").write_text("gold river\nstone water\nsluice index\n")
            return {"bank": str(folder / "bank.txt"), "mode": "static"}
        if name == "ltr":
            features = CandidateFeatures([self.bm25, self.dense])
            heads = dict(((self.bm25 | self.dense) % 25).run(QUERIES))
            parts = {part.name: part_fingerprint(part) for part in features.parts}
            lists = judged(features, QUERIES, heads, QRELS)
            ranker = LearnedRanker.fit(lists, features.names, model="linear", parts=parts)
            ranker.save(folder / "ltr", features.terms(None))
            return {"model": str(folder / "ltr")}
        return {}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("stages")
    flat = FlatIndex("cosine")
    return World(
        Retriever.build(BM25Encoder(), CORPUS, name="bm25", path=folder / "bm25"),
        Retriever.build(WordEncoder(), CORPUS, index=flat, name="dense", path=folder / "dense"),
        folder,
        Retriever.build(
            FunctionEncoder(token_vectors, name="words"),
            CORPUS,
            name="tokens",
            path=folder / "tokens",
        ),
        Retriever.build(
            BM25Encoder(), CORPUS, name="parts", path=folder / "parts", passages=Passages(4, 1)
        ),
        Retriever.build(
            WordEncoder(), CORPUS, index=FlatIndex("cosine"), name="dense_parts",
            path=folder / "dense_parts", passages=Passages(5, 1), shards=2,
        ),
    )  # fmt: skip


def built(world: World, name: str) -> Stage:
    """Return a stage of the table: its positional arguments are retrievers or scorers."""
    make = resolve(STAGES[name])
    parts: list[Any] = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts += [world.bm25, world.dense]
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            of_stages = "Stage" in str(parameter.annotation)
            sparse = name in ("rm3", "summarised")
            stage = world.tokens if name == "max_sim" else world.dense
            if parameter.name == "weight":
                parts.append(0.7)
                continue
            if parameter.name == "writer":
                parts += [] if name == "structured" else [Echo()]
                continue
            parts.append((world.bm25 if sparse else stage) if of_stages else Overlap())
    made = make(*parts, **world.options(name))
    if isinstance(made, Unfitted):
        made = fit_on(made, QUERIES, QRELS)
    return made if isinstance(made, Stage) else Rerank(made, depth=7)


@pytest.mark.parametrize("name", STAGES)
def test_stages_of_the_table(world: World, name: str) -> None:
    check_stage(built(world, name), QUERIES, documents=TEXTS, where={"odd": True})


OTHERS: dict[str, Callable[[World], Stage]] = {
    "retriever": lambda world: world.bm25,
    "filtered": lambda world: world.dense.filtered({"odd": True}),
    "cut": lambda world: world.bm25 % 5,
    "fused": lambda world: world.bm25 | world.dense | world.bm25 % 3,
    "cascade": lambda world: (world.bm25 | world.dense) % 20 >> Rerank(Overlap(), 8) % 12,
    "feedback on a list": lambda world: world.bm25 % 9 >> resolve(STAGES["prf"])(world.dense),
    "asked": lambda world: Asked(world.bm25, Asking(context="gold water", seen=["d02"])),
    "sources": lambda world: Sources([("bm25", world.bm25), ("dense", world.dense)]),
    "by score": lambda world: Fuse([world.bm25, world.dense], method="weighted"),
    "reranker": lambda world: Rerank(Overlap(), depth=5),
    "interpolated": lambda world: Rerank(Overlap(), depth=9, interpolate=0.5),
    "ruled": lambda world: Rerank(Overlap(), depth=9, rules=[cut_off(0.5)]),
    "tokens": lambda world: world.tokens,
    "gathered": lambda world: world.bm25 % 20 >> Rerank(StoredMaxSim(world.tokens), 15),
    "depth 0": lambda world: Rerank(Overlap(), depth=0),
    "pointwise": lambda world: Rerank(Pointwise.yes_no(FakeModel(lambda prompt: _chances(prompt)))),
    "pairwise": lambda world: Rerank(Pairwise(FakeModel(lambda prompt: _first(prompt)))),
    "listwise": lambda world: Rerank(Listwise(FakeModel(writes=lambda prompt: "[2] > [1]"))),
}
EXIT = exit_rule(0.5)

# Over retrievers of passages, whose hits name them.
OTHERS |= {
    "parts": lambda world: world.parts,
    "shards": lambda world: world.dense_parts,
    "a part with passages": lambda world: world.parts | world.dense,
    "passages, cut": lambda world: (2 * world.parts % 9 + world.dense_parts) % 20,
    "passages, filtered": lambda world: (world.parts | world.dense_parts).filtered({"odd": True}),
    "passages, reranked": lambda world: (
        (world.parts | world.dense_parts) >> Rerank(by_passages(Overlap(), length=4, overlap=1), 9)
    ),
    "passages, other texts": lambda world: resolve(STAGES["query2doc"])(
        world.parts | world.dense_parts, Echo()
    ),
    "passages, feedback": lambda world: world.parts | resolve(STAGES["rm3"])(world.bm25),
    "passages, times 2": lambda world: 2 * world.parts,
    "exit": lambda world: world.parts | (world.dense >> Rerank(Overlap(), 9, rules=[EXIT])),
}
OTHERS |= {
    f"passages by {method}": lambda world, method=method: Fuse(  # type: ignore[misc]
        [world.parts, world.dense, world.dense_parts], method=method
    )
    for method in METHODS
}


def _chances(prompt: Any) -> tuple[float, float]:
    share = 1 / (1 + len(prompt.slots[-1]) % 7)
    return share, 1 - share


def _first(prompt: Any) -> tuple[float, float]:
    _, one, other = prompt.slots
    return (1.0, 0.0) if len(one) > len(other) else (0.0, 1.0)


@pytest.mark.parametrize("name", OTHERS)
def test_other_stages(world: World, name: str) -> None:
    check_stage(OTHERS[name](world), QUERIES, documents=TEXTS, where={"odd": True})


# Stages that are no part of a pipeline, and those that remember the queries of one study by name.
NO_PARTS = {
    "Unfitted", "UnfittedFusion", "UnfittedProbability", "UnfittedRerank",  # they refuse to run
    "_AnyStage", "Probe",  # stand-ins
    "_Remembered", "Recalled", "RecalledRetriever", "AlteredRetriever", "FoldedLists",
}  # fmt: skip


HEAD = re.compile(r"^\s*class (\w+)\(([^)]*)\):", re.M)


def test_no_stage_is_forgotten(world: World) -> None:
    """Every class of a stage in the package is in a case here, and so is every rule of depth."""
    bases: dict[str, list[str]] = {}
    for path in (ROOT / "retrieval").rglob("*.py"):
        for name, above in HEAD.findall(path.read_text(encoding="utf-8")):
            bases.setdefault(name, []).extend(re.split(r"[\s,\[\]]+", above))
    stages, size = {"Stage"}, 0
    while len(stages) > size:
        size = len(stages)
        stages |= {name for name, names in bases.items() if stages.intersection(names)}
    tried: set[str] = set()
    waiting = [built(world, name) for name in STAGES if name != "ltr"]  # which is a Rerank
    waiting += [make(world) for make in OTHERS.values()]
    while waiting:
        stage = waiting.pop()
        tried |= {kind.__name__ for kind in type(stage).__mro__}
        waiting += stage.inner
    assert stages - tried == NO_PARTS
    assert set(DEPTH_RULES) == {"cut_off", "exit"}  # "ruled" and "exit" above


class Texts:
    def texts(self, document_ids: Sequence[str]) -> list[str]:
        return [TEXTS[each] for each in document_ids]


def ranked(stage: Stage) -> dict[str, list[tuple[str, float]]]:
    first = None
    if stage.needs_candidates:
        first = Run({query: dict.fromkeys([*TEXTS][:9], 1.0) for query in QUERIES})
        stage = stage.attached(Texts())
    return {query: list(ranking) for query, ranking in stage.run(QUERIES, first, 20).items()}


UNPICKLED = ("pointwise", "pairwise", "listwise")  # their model here is a lambda


@pytest.mark.parametrize("name", [*STAGES, *(name for name in OTHERS if name not in UNPICKLED)])
def test_copies_and_pickles_rank_alike(world: World, name: str) -> None:
    stage = built(world, name) if name in STAGES else OTHERS[name](world)
    copies = [copy.deepcopy(stage), pickle.loads(pickle.dumps(stage))]
    expected = ranked(stage)  # which opens something in some
    copies += [copy.deepcopy(stage), pickle.loads(pickle.dumps(stage))]
    for each in copies:
        assert type(each) is type(stage)
        assert ranked(each) == expected


def test_max_sim(bert: Path) -> None:
    check_stage(Rerank(MaxSim.from_pretrained(bert), depth=5), tolerance=1e-4)
