"""configs/production-hybrid.yaml from a click log to updates, on a small catalogue."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click_logs import write_log
from command_line import Call
from places import ROOT
from small_world import documents

from sluice.retrieval import Retriever, load_pipeline
from sluice.retrieval.documents.readers import as_documents
from sluice.retrieval.training_data.clicks.log import simulated_log

pytestmark = pytest.mark.thorough  # one journey, whose steps follow each other

CONFIG = ROOT / "configs" / "production-hybrid.yaml"
LATER = 5  # documents that are added after the build
PLACES = [1 / place for place in range(1, 5)]


def catalogue() -> list[dict[str, str]]:
    shelves = ("mines", "mills")
    return [
        {"id": each.id, "title": each.title, "text": each.text, "category": shelves[number % 2]}
        for number, each in enumerate(documents(24))
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Iterator[Path]:
    """A folder with the recipe's files, and the recipe with a tiny model."""
    folder = tmp_path_factory.mktemp("shop")
    rows = catalogue()
    write_rows(folder / "all.jsonl", rows)
    write_rows(folder / "catalogue.jsonl", rows[:-LATER])
    write_rows(folder / "new.jsonl", rows[-LATER:])
    names = [row["id"] for row in rows[:-LATER]]
    asked = {f"q{n}": " ".join(rows[n]["text"].split()[1:3]) for n in range(12)}
    write_rows(folder / "queries.jsonl", ({"id": q, "query": text} for q, text in asked.items()))
    for split, numbers in (("dev", (6, 7, 8)), ("test", (9, 10, 11))):
        lines = [f"q{n}\t{names[n]}\t1" for n in numbers]
        head = "query-id\tcorpus-id\tscore"
        (folder / f"{split}.tsv").write_text("\n".join([head, *lines]) + "\n")
    lists = {f"q{n}": [names[n], names[n + 6], names[n + 7], names[n + 8]] for n in range(6)}
    clicked = {query: shown[0] for query, shown in lists.items()}
    pages = simulated_log(
        lists, lambda q, d: 0.9 if clicked[q] == d else 0.0, pages=12, examination=PLACES
    )
    write_log(folder / "clicks.jsonl", pages)
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    for name in ("small", "cross"):
        training = config["train"][name]
        training["encoder"]["model"] = str(bert)
        training["freeze"] = {"embeddings": True}
        lengths = {"document_length": 32} if name == "small" else {"max_length": 40}
        training["encoder"] |= lengths
        training["trainer"] |= {"max_steps": 2, "per_device_train_batch_size": 2, "bf16": False}
    config["train"]["small"]["encoder"]["projection"] = 8
    config["rerankers"]["cross"]["max_length"] = 40
    del config["retrievers"]["plain"], config["pipelines"]["plain"]
    config["pipelines"]["reranked"] = "merged >> cross(depth=3)"
    config["pipelines"]["merged"] = "(bm25 | small) % 100"
    config["evaluate"] |= {"latency_queries": 2, "report": False}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(config))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_recipe_from_clicks_to_updates(
    shop: Path, sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    code, _, err = sluice("run", "recipe.yaml")
    assert code == 0, err
    output = shop / "runs" / "production-hybrid"
    small = Retriever.open(output / "retrievers" / "small")
    assert small.encoder.dim == 8  # the projection
    assert small.search("category", k=1)[0].metadata["category"] in ("mines", "mills")
    assert small.store.document(0).text.startswith("mines\n\n")  # fields, put together
    bm25, merged, reranked = (
        load_pipeline(output, name) for name in ("bm25", "merged", "reranked")
    )
    query = "river number"
    found = [hit.doc_id for hit in merged.search(query, k=100)]
    lists = [[hit.doc_id for hit in each.search(query, k=100)] for each in (bm25, small)]
    assert set(found) == set(lists[0]) | set(lists[1])  # both lists are merged
    last = [hit.doc_id for hit in reranked.search(query, k=100)]
    assert sorted(last[:3]) == sorted(found[:3])  # reranked to the depth, the rest as it was
    assert last[3:] == found[3:]


def test_added_documents_are_found_as_in_a_new_build(
    shop: Path, sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    output = "runs/production-hybrid"
    assert sluice("add", output, "new.jsonl")[0] == 0
    assert sluice("delete", output, "d00", "--compact")[0] == 0  # BM25's mean length too
    grown = Retriever.open(Path(output) / "retrievers" / "bm25")
    rows = [row for row in catalogue() if row["id"] != "d00"]
    write_rows(shop / "rest.jsonl", rows)
    columns = {"id": "id", "title": "title", "text": ["category", "text"]}
    fresh = Retriever.build("bm25", as_documents(shop / "rest.jsonl", **columns))
    for query in ("mills number", "gold river", f"word{len(rows)}"):
        ours, theirs = grown.search(query, k=50), fresh.search(query, k=50)
        assert [hit.doc_id for hit in ours] == [hit.doc_id for hit in theirs]
        np.testing.assert_allclose(
            [hit.score for hit in ours], [hit.score for hit in theirs], rtol=1e-5
        )
