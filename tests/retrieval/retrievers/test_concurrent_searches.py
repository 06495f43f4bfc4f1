"""Searches while the retriever changes: each sees one state, whole."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.pipelines.search import kept_state, one_state
from sluice.retrieval.retrievers.state import RetrieverState


def labelled(count: int = 60) -> list[Document]:
    return [
        Document(f"d{n:03d}", "", f"gold word{n} " + "stone " * (n % 5), {"n": n})
        for n in range(count)
    ]


@pytest.mark.thorough
def test_searches_see_one_state_while_documents_change() -> None:
    retriever = Retriever.build(BM25Encoder(), labelled())
    faults: list[object] = []
    done = threading.Event()

    def searching(search: Callable[[int], list[tuple[str, str]]]) -> None:
        number = 0
        while not done.wait(0.001):
            number = (number + 7) % 60
            try:
                faults.extend(
                    hit for hit in search(number) if f"word{number}" not in hit[1].split()
                )
            except Exception as error:
                faults.append(error)
                return

    def plain(number: int) -> list[tuple[str, str]]:
        return [(hit.doc_id, hit.text) for hit in retriever.search(f"word{number}", 3)]

    def filtered(number: int) -> list[tuple[str, str]]:
        stage = retriever.filtered({"n": number})
        return [(hit.doc_id, hit.text) for hit in stage.search("gold", 3)]

    threads = [threading.Thread(target=searching, args=(search,)) for search in (plain, filtered)]
    for thread in threads:
        thread.start()
    for number in range(3):
        retriever.add([Document(f"new{number}", "", f"gold fresh{number}")])
        retriever.update([Document(f"d{59 - number:03d}", "", f"word{59 - number} renewed")])
        retriever.delete([f"d{number:03d}"])
        retriever.compact()
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(retriever) == 60
    assert retriever.search("renewed", 60)[0].text.endswith("renewed")


def test_a_state_goes_on_while_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.build(BM25Encoder(), labelled(20))
    before = retriever.search("word7 gold", 20)
    seen = []
    whole = RetrieverState.forked

    def watched(state: RetrieverState) -> RetrieverState:
        fork = whole(state)
        fork.store.delete([0])
        fork.encoder.add_documents(["word7 word7 gold gold"])
        seen.append(retriever.search("word7 gold", 20))
        raise DataError("stopped halfway")

    monkeypatch.setattr(RetrieverState, "forked", watched)
    with pytest.raises(DataError, match="halfway"):
        retriever.delete(["d000"])
    assert seen == [before]


class Longest:
    """Scores a document by its length, once a change is done that began in the middle."""

    name, fingerprint = "longest", "longest"

    def __init__(self, meanwhile: Callable[[], object] = str) -> None:
        self.meanwhile = meanwhile

    def score(self, pairs: list[tuple[str, str]]) -> list[float]:
        self.meanwhile()
        return [float(len(text)) for _, text in pairs]


def test_a_pipeline_follows_the_changes_of_its_retriever() -> None:
    retriever = Retriever.build(BM25Encoder(), labelled(5))
    pipeline = retriever % 10 >> Rerank(Longest())
    filtered = pipeline.filtered({"n": {"gte": 0}})
    retriever.add([Document("new", "", "gold " * 40, {"n": 9})])
    assert pipeline.search("gold")[0].doc_id == filtered.search("gold")[0].doc_id == "new"


def test_a_pipeline_sees_one_state_of_its_retriever() -> None:
    retriever = Retriever.build(BM25Encoder(), labelled(5))
    gone = iter([f"d{number:03d}" for number in range(5)])

    def change() -> None:
        done = threading.Thread(target=lambda: retriever.delete([next(gone)]))
        done.start()
        done.join()

    stages = Rerank(Longest(change), depth=3) >> Rerank(Longest(), depth=5)
    pipeline = (retriever | 0.5 * retriever) % 10 >> stages
    assert len(pipeline.search("gold")) == 5
    assert len(pipeline.run({"q": "gold"})["q"]) == 4
    assert len(pipeline.search(["gold"])[0]) == 3
    assert len(retriever) == 2


def test_retrievers_opened_one_after_another_in_a_call_are_searched_as_themselves() -> None:
    class Owner:
        pass

    with one_state():  # an object often gets the address of the one that went before it
        assert [kept_state(Owner(), number) for number in range(9)] == list(range(9))


def test_an_opened_retriever_keeps_its_metadata_while_another_changes(tmp_path: Path) -> None:
    writer = Retriever.build(BM25Encoder(), labelled(20), path=tmp_path / "r")
    reader = Retriever.open(tmp_path / "r")
    before = reader.search("gold", 20)
    for number in range(3):
        writer.add([Document(f"new{number}", "", "gold")])
    assert reader.search("gold", 20) == before
    assert [hit.doc_id for hit in reader.search("gold", where={"n": 7})] == ["d007"]
