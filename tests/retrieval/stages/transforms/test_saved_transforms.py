"""Pipelines with query transforms as folders: saved, opened, and refused where they are hostile."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_language_models import Echo
from small_world import documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.retrieval import Document, Retriever, Stage, load_pipeline
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.transforms.stage import Each, Transformed

QUERIES = {"a": "glod river", "b": "number odd:true stone", "c": "tv of gold", "d": ""}


class Drawing(Echo):
    """Writes other words for each draw."""

    def drawn(self, prompts: Any, max_new_tokens: int, temperature: float, seed: int) -> list[str]:
        return [f"{text} word{seed}" for text in self.completions(prompts, max_new_tokens)]


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    corpus = [Document(d.id, d.title, d.text, {"odd": n % 2 == 1}) for n, d in
              enumerate(documents())]  # fmt: skip
    return Retriever.build(BM25Encoder(), corpus, name="bm25")


def opened(text: str, bm25: Retriever, **parts: Any) -> Stage:
    names = {"b": bm25, **parts}
    return parse(text, {name: (lambda part=part: part) for name, part in names.items()})


@pytest.mark.parametrize(
    "text",
    [
        "synonyms(b, rules=['gold, water', 'tv => stone'], weight=0.3)",
        "spelling(b, edits=1, query_weight=0.2)",
        "key_phrases(spelling(b | b % 3), phrases=2, weight=2, common=0.5) % 9",
        "structured(spelling(b)) >> f(depth=4)",
        "hyde(b, w, samples=3, temperature=0.5, query_weight=2, prompt=['a {query}', '{query} b'])",
        "query2doc(b, w, repeats=2, tokens=9) | iter_retgen(b, w, rounds=1, depth=3, budget=900)",
        "structured(b, w, deadline_ms=5000)",
    ],
)
def test_a_saved_pipeline_finds_the_same(text: str, bm25: Retriever, tmp_path: Path) -> None:
    def lengths(pairs: Any) -> list[float]:
        return [float(len(each)) for _, each in pairs]

    writer = Drawing()
    stage = opened(text, bm25, w=writer, f=lengths)
    before = stage.run(QUERIES)
    stage.save(tmp_path / "p")
    facts = json.loads((tmp_path / "p" / "pipeline.json").read_text())
    given = {"Drawing": writer, "lengths": lengths}
    needed = {name: part for name, part in given.items() if name in facts["rerankers"]}
    again = load_pipeline(tmp_path / "p", given=needed)
    assert dict(again.run(QUERIES)) == dict(before)
    again.save(tmp_path / "q")
    same = json.loads((tmp_path / "q" / "pipeline.json").read_text())
    assert same["expression"] == facts["expression"]
    if needed:
        with pytest.raises(ConfigError, match=r"is not saved, because it is code; give it again"):
            load_pipeline(tmp_path / "p")


def test_a_file_of_synonyms_is_saved_as_its_lines(bm25: Retriever, tmp_path: Path) -> None:
    file = tmp_path / "synonyms.txt"
    file.write_text("# comment\n\ngold, water\n" + "".join(f"a{n} => b{n}\n" for n in range(500)))
    stage = opened(f"synonyms(b, file={str(file)!r})", bm25)
    before = stage.run(QUERIES)
    stage.save(tmp_path / "p")
    file.unlink()
    assert dict(load_pipeline(tmp_path / "p").run(QUERIES)) == dict(before)
    assert str(tmp_path) not in (tmp_path / "p" / "pipeline.json").read_text()


def test_caches_stay_where_they_are(bm25: Retriever, tmp_path: Path) -> None:
    cache = tmp_path / "answers.sqlite"
    writer = Pointwise.yes_no(Echo())  # type: ignore[arg-type]
    stage = opened(f"query2doc(b, w, cache={str(cache)!r})", bm25, w=writer)
    before = stage.run(QUERIES)
    stage.save(tmp_path / "p")
    assert "cache" not in (tmp_path / "p" / "pipeline.json").read_text()
    cache.unlink()
    assert dict(load_pipeline(tmp_path / "p", given={"Pointwise": writer}).run(QUERIES)) == dict(
        before
    )
    assert not cache.exists()


def test_a_folder_reads_and_writes_no_file(bm25: Retriever, tmp_path: Path) -> None:
    spelt = opened("spelling(b)", bm25)
    spelt.save(tmp_path / "p")
    file = tmp_path / "p" / "pipeline.json"
    facts = json.loads(file.read_text())
    for hostile in ("synonyms(bm25, file='/etc/passwd')", "hyde(bm25, bm25, cache='x.sqlite')"):
        file.write_text(json.dumps({**facts, "expression": hostile}))
        with pytest.raises(IndexFormatError, match=r"which a saved pipeline never does"):
            load_pipeline(tmp_path / "p")
    file.write_text(json.dumps({**facts, "expression": "hyde(bm25, bm25)"}))
    with pytest.raises(ConfigError, match=r"hyde"):
        load_pipeline(tmp_path / "p").search("gold")
    own = Transformed(bm25, Each(lambda text: [(text, 1.0)]))
    with pytest.raises(ConfigError, match=r"a Transformed cannot be saved as a pipeline"):
        own.save(tmp_path / "own")
