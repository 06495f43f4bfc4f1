"""An index that learns from queries: in Python, and in an experiment from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import SUBJECTS, WordEncoder, documents, write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import AutoIndex, FlatIndex, QueryGraphIndex
from sluice.indexing.auto.candidates import candidates
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.corpus import index_queries

SMALL: dict[str, Any] = {"neighbours": 5, "depth": 3, "entries": 2, "candidates": 3}
ASKED = {f"t{number}": f"{word} number" for number, word in enumerate(SUBJECTS)}


def test_queries_link_and_others_measure(tmp_path: Path) -> None:
    index = QueryGraphIndex(**SMALL)
    built = Retriever.build(
        WordEncoder(), documents(), index=index, queries=ASKED, path=tmp_path / "graph"
    )
    learnt = index._links.queries
    assert len(learnt) == 8
    note = index.recall_note
    assert note is not None
    assert (note.queries, note.documents) == (2, 40)
    vectors = WordEncoder().encode_queries(list(ASKED.values()))
    assert sum((learnt == vector).all(axis=1).any() for vector in vectors) == 8
    opened = Retriever.open(tmp_path / "graph", encoder=WordEncoder())
    flat = Retriever.build(WordEncoder(), documents(), index=FlatIndex())
    for retriever in (built, opened):
        run = retriever.run(ASKED, k=50, params={"candidates": 40})
        assert run.to_dict() == flat.run(ASKED, k=50).to_dict()
    opened.add([Document("new", "", "silver silver silver")])
    assert opened.search("silver", k=1, params={"candidates": 41})[0].doc_id == "new"
    opened.delete(["new"])
    assert opened.search("silver", k=1, params={"mode": "exhaustive"})[0].doc_id != "new"


@pytest.mark.parametrize("queries", [None, {}, dict(list(ASKED.items())[:4])])
def test_too_few_queries_are_refused(queries: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"links documents by training queries, and there are [04]"
    ):
        Retriever.build(WordEncoder(), documents(), index=QueryGraphIndex(**SMALL), queries=queries)


def test_the_autopilot_tries_it_with_queries_that_it_does_not_measure_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def few(*given: Any, **named: Any) -> Iterator[Any]:
        kinds = ("HNSW32", "query_graph")
        return (each for each in candidates(*given, **named) if each.kind in kinds)

    monkeypatch.setattr("sluice.indexing.auto.trials.candidates", few)
    monkeypatch.setattr("sluice.indexing.auto.candidates.SECONDS", 0.01)
    monkeypatch.setattr(index_queries, "QUERIES", 4)
    queries = {**ASKED, "again": ASKED["t0"]}
    others = index_queries._not_asked(queries)
    asked = [text for name, text in queries.items() if name not in others]
    assert len(set(asked)) == 4
    assert not set(asked) & set(others.values())
    tried = []
    for least in (len(others), len(others) + 1):  # enough of the others, and one too few
        monkeypatch.setattr("sluice.indexing.auto.index.FEWEST_QUERIES", least)
        recipe = AutoIndex(0.9, exact_below=2)
        built = Retriever.build(WordEncoder(), documents(), index=recipe, queries=queries)
        tried.append({row["name"] for row in built.index.notes["auto"]["table"]})
    assert ["query_graph" in names for names in tried] == [True, False]
    assert all("HNSW32" in names for names in tried)


@pytest.mark.thorough
def test_an_experiment_from_the_command_line(tmp_path: Path, bert: Path, sluice: Call) -> None:
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {
            "linked": {
                "encoder": {"type": "dense", "model": str(bert)},
                "index": {"type": "query_graph", **SMALL},
                "search": {"candidates": 40},
            },
            "flat": {"encoder": {"type": "dense", "model": str(bert)}, "index": {"type": "flat"}},
        },
        "evaluate": {"measures": ["R@5"]},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    code, _, err = sluice("run", path)
    assert code == 0, err
    found = [
        sluice("search", tmp_path / "out" / "retrievers" / name, "gold river", "-k", "99")[1]
        for name in ("linked", "flat")
    ]
    assert found[0].split() == found[1].split()
    config["retrievers"]["linked"]["index"]["candiates"] = 3
    path.write_text(yaml.safe_dump(config))
    code, _, err = sluice("run", path)
    assert (code, "did you mean 'candidates'" in err) == (2, True)
    del config["retrievers"]["linked"]["index"]["candiates"]
    config["retrievers"]["linked"]["search"] = {"iterations": 3}
    path.write_text(yaml.safe_dump(config))
    code, _, err = sluice("run", path)
    assert (code, "unknown search parameter 'iterations'" in err) == (2, True)
    config["retrievers"]["linked"] |= {"encoder": {"type": "bm25"}, "search": {}}
    path.write_text(yaml.safe_dump(config))
    assert sluice("run", path)[0] == 2
