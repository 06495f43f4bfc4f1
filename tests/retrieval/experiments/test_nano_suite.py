"""Suites of small collections in folders, as NanoBEIR and HAKARI-Bench publish them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import Call
from pyarrow import parquet
from scipy import stats
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import load_dataset
from sluice.retrieval.datasets.nano import collections_of
from sluice.retrieval.experiments.suites.average import stratified_mean
from sluice.retrieval.jobs import suite
from sluice.retrieval.runs.trec_files import read_qrels

RETRIEVERS = {"bm25": {"encoder": {"type": "bm25"}}}


def write_nano(folder: Path, split: str, source: Path, *, shards: int = 1) -> Path:
    """Write a collection in BEIR layout as the hub has NanoBEIR's: Parquet, relevant ones alone."""
    data = load_dataset(source)
    documents = [{"_id": each.id, "text": each.full_text} for each in data.corpus]
    pairs = [(q, d) for q, judged in data.qrels.items() for d, grade in judged.items() if grade]
    tables = {
        "queries": [{"_id": name, "text": text} for name, text in data.queries.items()],
        "qrels": [{"query-id": query, "corpus-id": document} for query, document in pairs],
        "bm25": [{"query-id": query, "corpus-ids": [document]} for query, document in pairs],
    }
    files = {f"{part}/{split}-00000-of-00001": rows for part, rows in tables.items()}
    for shard in range(shards):
        name = f"corpus/{split}-{shard:05}-of-{shards:05}"
        files[name] = documents[shard::shards]
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


@pytest.fixture
def beir(tmp_path: Path) -> list[Path]:
    return [write_beir(tmp_path / "beir" / name, count) for name, count in (("a", 40), ("b", 30))]


def values(tmp_path: Path, name: str, **parts: Any) -> dict[str, Any]:
    return {
        "dataset": f"suite:{name}", "output": str(tmp_path / "out" / Path(name).name),
        "retrievers": RETRIEVERS, "evaluate": {"measures": ["RR@10"], "latency_queries": 0},
        **parts,
    }  # fmt: skip


def test_both_layouts_score_as_the_collections_themselves(
    tmp_path: Path, beir: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for source, name in zip(beir, ("NanoSciFact", "NanoNQ"), strict=True):
        write_nano(data / "NanoBEIR-en", name, source, shards=2)
        write_nano(data / "apart" / name, "train", source)
    monkeypatch.setenv("SLUICE_DATA", str(data))
    plain = suite(values(tmp_path, str(beir[0].parent)))
    assert plain is not None
    expected = [plain.tables["RR@10"].rows["bm25"][name] for name in ("a", "b")]
    for named in ("nano", "NanoBEIR-en", "apart", str(data / "apart")):
        found = suite(values(tmp_path, named))
        assert found is not None
        row = found.tables["RR@10"].rows["bm25"]
        assert [row["NanoSciFact"], row["NanoNQ"]] == expected
        assert row["average"] == pytest.approx(np.mean(expected), abs=1e-12)
    several = [each["name"] for each in collections_of(str(data)) if isinstance(each, dict)]
    assert several == ["NanoBEIR-en__NanoNQ", "NanoBEIR-en__NanoSciFact"]
    (data / "NanoBEIR-en").rename(data / "other")
    for each in (data / "apart").iterdir():
        each.rename(data / each.name)
    assert [each["name"] for each in collections_of("nano") if isinstance(each, dict)] == [
        "NanoNQ", "NanoSciFact"
    ]  # fmt: skip


def test_the_verb_prints_a_row_for_each_collection(
    tmp_path: Path, beir: list[Path], sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source, name in zip(beir, ("NanoSciFact", "NanoNQ"), strict=True):
        write_nano(tmp_path / "nano", name, source)
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bm25 = 'retrievers={"bm25": {"encoder": {"type": "bm25"}}}'
    code, out, err = sluice("evaluate", "pipelines={bm25: bm25}", bm25, "--suite", "nano")
    assert code == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == [
        "collection", "-----------", "NanoNQ", "NanoSciFact", "average", "average"
    ]  # fmt: skip
    results = json.loads(Path("runs/beir-nano/results.json").read_text())
    assert results["datasets"] == ["NanoNQ", "NanoSciFact"]
    assert "| collection | bm25 |" in Path("runs/beir-nano/report.md").read_text()
    code, _, err = sluice("evaluate")
    assert (code, "CONFIG" in err) == (2, True)


def test_the_average_of_two_is_welchs(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    one, two = draw.normal(0.4, 0.3, 50), draw.normal(0.1, 0.1, 20)
    found = stratified_mean({"one": one, "two": two}, {"one": 0.5, "two": 0.5})
    welch = stats.ttest_ind(one, -two, equal_var=False)
    low, high = welch.confidence_interval(0.95)
    mean, half, p = found
    assert half is not None
    assert (mean - half, mean + half) == pytest.approx((low / 2, high / 2))
    assert p == pytest.approx(float(welch.pvalue))
    plain = stratified_mean({"one": one}, {"one": 1.0}, alpha=0.1)
    low, high = stats.t.interval(0.9, 49, one.mean(), stats.sem(one))
    assert plain[1] == pytest.approx((high - low) / 2)
    assert stratified_mean({"one": one, "two": two[:1]}, {"one": 0.5, "two": 0.5})[1] is None
    assert stratified_mean({"one": np.zeros(3)}, {"one": 1.0}) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("rows", "words"), [
    ([{"query-id": "q", "corpus-id": 3}], "row 0: query-id 'q', corpus-id 3; expected texts"),
    ([{"query": "q", "document": "d"}], "row 0: query-id None, corpus-id None"),
    ([{"query-id": "q", "corpus-id": "d", "score": 0.5}], "score 0.5 is not a whole number"),
    ([], "no judgements"),
])  # fmt: skip
def test_bad_judgements(rows: list[dict[str, Any]], words: str, tmp_path: Path) -> None:
    file = tmp_path / "qrels.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(DataError, match=words):
        read_qrels(file)


def test_bad_suites(tmp_path: Path, beir: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    (tmp_path / "empty").mkdir()
    folder = write_nano(tmp_path / "half", "NanoNQ", beir[0])
    (folder / "qrels" / "NanoNQ-00000-of-00001.parquet").unlink()
    for name, words in (
        ("nano", "suite 'nano': no collection in "), ("empty", "expected folders in BEIR layout"),
        ("emty", "did you mean 'empty'?"), ("half", "half/qrels: 0 files of NanoNQ; expected one"),
    ):  # fmt: skip
        with pytest.raises((ConfigError, DataError), match=words.replace("?", r"\?")):
            suite(values(tmp_path, name))
    assert not (tmp_path / "out").exists()
