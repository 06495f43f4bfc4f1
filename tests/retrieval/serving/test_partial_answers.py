"""An answer of the service names the shards that it was made without."""

import shutil
from pathlib import Path

from small_world import documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Retriever
from sluice.retrieval.serving.shapes.search import SearchRequest
from sluice.retrieval.serving.work.searching import answer, search_all


def test_an_answer_without_a_shard(tmp_path: Path) -> None:
    Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r", shards=2)
    request = SearchRequest(query="gold river")
    whole = Retriever.open(tmp_path / "r")
    (found,) = search_all(whole, ["gold river"], 40)
    shape = answer(request, "gold river", "r", found, 1)
    assert (shape.complete, shape.partial, shape.note) == (True, [], None)

    shutil.rmtree(tmp_path / "r/shards/s000001/shard-0")
    rest = Retriever.open(tmp_path / "r", params={"partial": "allow"})
    (less,) = search_all(rest, ["gold river"], 40)
    shape = answer(request, "gold river", "r", less, 1)
    assert (shape.complete, shape.partial) == (False, ["shard-0"])
    assert shape.note == "without the documents of shard-0"
    ids = [hit.doc_id for hit in less.hits]
    assert 0 < len(ids) < len(found.hits)
    assert ids == [hit.doc_id for hit in found.hits if hit.doc_id in ids]
