"""Pipelines as folders: saved with their parts, opened elsewhere, refused where damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder, CrossEncoder
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.indexing import FlatIndex
from sluice.retrieval import Fuse, Rerank, Retriever, Run, Stage, load_pipeline
from sluice.retrieval.pipelines.expression import parse

QUERIES = {"a": "gold river", "b": "number 7", "c": "zzz"}


def words(texts: list[str]) -> Any:
    return WordEncoder().encode_documents(texts)


def lengths(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(text)) for _, text in pairs]


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(words, documents(), name="by words!")


def same(one: Run, other: Run) -> bool:
    return dict(one) == dict(other)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "b", "b % 3", "b | d", "0.3 * b + 0.7 * d", "(0.5 * b % 7) % 5", "b >> cross(depth=4)",
        "weighted(b, b | d, normalise='z-score', weights=[1, 2]) % 9 >> f(depth=5, interpolate=.3)",
        "rrf(rrf(b, d, weights=[2, 1]), b, rank_constant=10)",
    ],
)  # fmt: skip
def test_a_saved_pipeline_finds_the_same(
    text: str, bm25: Retriever, dense: Retriever, pair_bert: Path, tmp_path: Path
) -> None:
    cross = CrossEncoder.from_pretrained(pair_bert)
    names: dict[str, Any] = {"b": bm25, "d": dense, "cross": cross, "f": lengths}
    stage = parse(text, {name: (lambda part=part: part) for name, part in names.items()})
    before = stage.run(QUERIES)
    stage.save(tmp_path / "p")
    moved = shutil.move(tmp_path / "p", tmp_path / "moved")
    opened: Stage
    if text == "b":
        opened = Retriever.load(moved)
    else:
        facts = json.loads((tmp_path / "moved" / "pipeline.json").read_text())
        code = {"by_words": words, "lengths": lengths}
        parts = {**facts["retrievers"], **facts["rerankers"]}
        opened = load_pipeline(moved, given={n: f for n, f in code.items() if n in parts})
    assert same(opened.run(QUERIES), before)
    assert same(stage.run(QUERIES), before)


def test_filters_are_saved_and_retrievers_once(
    bm25: Retriever, tmp_path: Path, sluice: Call
) -> None:
    some = bm25.filtered({"id": ["d00", "d10"]})
    (some | bm25 | bm25 % 3).save(tmp_path / "p")
    assert len(list((tmp_path / "p" / "retrievers").iterdir())) == 2
    opened = load_pipeline(tmp_path / "p")
    assert isinstance(opened, Fuse)
    assert opened.stages[0].base_where == {"id": ["d00", "d10"]}
    status, out, _ = sluice("search", tmp_path / "p", "gold river", "-k", 2)
    assert (status, "d00" in out, "d10" in out) == (0, True, True)
    (bm25 % 2).save(tmp_path / "p")  # a pipeline's folder is replaced
    assert len(load_pipeline(tmp_path / "p").run(QUERIES)["a"]) == 2


def test_a_copy_is_another_retriever(tmp_path: Path) -> None:
    first = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "first")
    first.add({"other": "a new text of gold"})
    first.delete(["d03"])
    first.save(tmp_path / "copy")
    copy = Retriever.open(tmp_path / "copy")
    assert same(copy.run(QUERIES), first.run(QUERIES))
    copy.add({"new": "gold gold gold"})
    copy.compact()
    assert "new" in copy
    assert "new" not in Retriever.open(tmp_path / "first")
    first.delete(["d00"])
    first.compact()
    assert "d00" in Retriever.open(tmp_path / "copy")
    first.save(tmp_path / "first")  # onto itself: nothing happens
    first.save(tmp_path / "copy")
    assert "new" not in Retriever.open(tmp_path / "copy")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"contains 'mine.txt' but no retriever.json"):
        first.save(tmp_path / "notes")


def test_what_cannot_be_saved_is_said(bm25: Retriever, dense: Retriever, tmp_path: Path) -> None:
    class Own(Stage):
        name = "own"

        def rank(self, queries: Any, given: Run | None = None, k: int | None = None) -> Run:
            return Run({})

    def stage(text: str) -> Stage:
        return parse(text, {"b": lambda: bm25, "d": lambda: dense, "f": LengthScorer})

    for wrong, message in [
        (Own() | bm25, "own: a Own cannot be saved as a pipeline"),
        (bm25 >> stage("rm3(b)"), "write it under pipelines: of an experiment"),
        (bm25 >> stage("f(depth=3, cut_off=0.9)"), "cannot be saved with a rule of its depth"),
        (bm25 >> stage("pair_head(d, model='x')"), "cannot be saved with retrievers of its scorer"),
    ]:
        with pytest.raises(ConfigError, match=message):
            wrong.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_functions_are_given_again(bm25: Retriever, dense: Retriever, tmp_path: Path) -> None:
    ((bm25 | dense) >> Rerank(lengths, 5)).save(tmp_path / "p")
    with pytest.raises(ConfigError, match=r"'lengths' .* is not saved.*given=\{'lengths'"):
        load_pipeline(tmp_path / "p")
    with pytest.raises(ConfigError, match=r"has no part 'length'.* did you mean 'lengths'"):
        load_pipeline(tmp_path / "p", given={"length": lengths})
    with pytest.raises(ConfigError, match="leave the name 'x' out"):
        load_pipeline(tmp_path / "p", "x")
    with pytest.raises(IndexFormatError, match="built with encoder"):
        load_pipeline(tmp_path / "p", given={"lengths": lengths, "by_words": lengths}).search("a")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"version": 99}, {"expression": 3}, {"retrievers": []},
        {"retrievers": {"bm25": {"folder": "../elsewhere"}}},
        {"retrievers": {"bm25": {"folder": "/etc"}}}, {"retrievers": {"../x": {}}},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(change: Any, bm25: Retriever, tmp_path: Path) -> None:
    (bm25 % 2).save(tmp_path / "p")
    file = tmp_path / "p" / "pipeline.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(IndexFormatError, match=r"save the pipeline again|upgrade sluice-ir"):
        load_pipeline(tmp_path / "p")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("cached(f, file='{evil}')", "cached, file"), ("bm25 >> f(exit='{evil}')", "exit"),
        ("bm25 >> passages(cached(f, file='{evil}'))", "cached, file, passages"),
        ("bm25 >> ltr(model='{evil}')", "ltr, model"),
        ("fused(bm25, bm25, fitted='{evil}')", "fitted"),
        ("abstain(bm25, fitted='{evil}')", "fitted"),
    ],
)  # fmt: skip
def test_a_saved_pipeline_reads_and_writes_its_own_folder_alone(
    call: str, named: str, bm25: Retriever, tmp_path: Path
) -> None:
    (bm25 >> Rerank(lengths, 5)).save(tmp_path / "p")
    file, evil = tmp_path / "p" / "pipeline.json", tmp_path / "evil"
    text = file.read_text().replace("lengths", "f")
    expression = call.format(evil=evil.as_posix())
    file.write_text(json.dumps({**json.loads(text), "expression": expression}))
    with pytest.raises(IndexFormatError, match=rf"uses {named}.*never does; save"):
        load_pipeline(tmp_path / "p", given={"f": lengths})
    assert not evil.exists()


def test_an_index_of_another_metric_is_kept(tmp_path: Path) -> None:
    cosine = Retriever.build(WordEncoder(), documents(), index=FlatIndex("cosine"))
    cosine.save(tmp_path / "r")
    kind = "small_world:WordEncoder"
    opened = Retriever.load(tmp_path / "r", allow=[kind])
    assert opened.index.metric == "cosine"
    assert cosine.name == "WordEncoder"


@pytest.mark.parametrize("text", ['{"stages": ["clean"]}', "[", '"sluice.pipeline"'])
def test_a_folder_with_another_programs_file_is_kept(
    text: str, bm25: Retriever, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"pipeline.json is not a saved pipeline's; only a"):
        (bm25 % 2).save(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "kept"
    assert (tmp_path / "pipeline.json").read_text() == text


def test_what_saves_opens(bm25: Retriever, tmp_path: Path) -> None:
    fuse = Fuse(
        [bm25, bm25 % 3], rank_constant=np.float64(10), weights=(np.float32(1), np.int64(2))
    )
    fuse.save(tmp_path / "numbers")
    assert same(load_pipeline(tmp_path / "numbers").run(QUERIES), fuse.run(QUERIES))
    least = Fuse(
        [bm25, bm25],
        method=np.str_("weighted"), normalise="theoretical-min", minimum=[np.float64(-1), 0],
    )  # fmt: skip
    (least >> Rerank(lengths, np.int64(4), deadline_ms=np.float64(1e6))).save(tmp_path / "options")
    opened = load_pipeline(tmp_path / "options", given={"lengths": lengths})
    assert len(opened.run(QUERIES)["a"])

    def prf(pairs: list[tuple[str, str]]) -> list[float]:
        return lengths(pairs)

    prf.__qualname__ = prf.__name__ = "prf"
    for name in ("in", "as", "or", "None", "True", "rrf", "..."):
        part = Retriever.build(BM25Encoder(), documents(), name=name)
        stage = (part | bm25) >> Rerank(prf, 3)
        stage.save(tmp_path / "names")
        opened = load_pipeline(tmp_path / "names", given={"part_prf": prf})
        assert same(opened.run(QUERIES), stage.run(QUERIES)), name
