"""A new query encoder on an old index: measured, written, opened, searched, and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from small_world import write_beir

from sluice.encoders import BM25Encoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.towers import TowerEncoder
from sluice.indexing import FaissIndex
from sluice.retrieval import Retriever, evaluate, load_dataset
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.folder import verify_retriever
from sluice.retrieval.studies import upgrade

NOISE = "gold river stone water sluice vector "  # before every query of the old encoder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tmp_path_factory.mktemp("world") / "data")


@pytest.fixture(scope="module")
def dev(world: Path) -> Dataset:
    return load_dataset(world, "dev")


@pytest.fixture(scope="module")
def old(world: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose own queries are read badly, so that there is something to gain."""
    encoder = DenseEncoder.from_pretrained(bert, query_prompt=NOISE)
    folder = tmp_path_factory.mktemp("old") / "dense"
    index = FaissIndex("Flat")
    Retriever.build(encoder, load_dataset(world, None).corpus, path=folder, index=index)
    return folder


@pytest.fixture(scope="module")
def other(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained apart: its vectors are of the same width and mean other things."""
    folder = tmp_path_factory.mktemp("models") / "other"
    DenseEncoder.from_pretrained(bert, projection=32, seed=5).save_pretrained(folder)
    return folder


def test_the_inequality_is_what_two_retrievers_have(old: Path, bert: Path, dev: Dataset) -> None:
    found = upgrade(old, bert, dev, "RR@10")
    own = evaluate(Retriever.open(old), dev, ["RR@10"])
    towers = TowerEncoder(
        DenseEncoder.from_pretrained(bert),
        DenseEncoder.from_pretrained(bert, query_prompt=NOISE),
    )
    fresh = evaluate(Retriever.build(towers, dev.corpus), dev, ["RR@10"])
    assert (found.old, found.new) == (own.mean["RR@10"], fresh.mean["RR@10"])
    assert found.holds
    assert found.change.difference == pytest.approx(found.new - found.old, abs=1e-12)
    assert found.queries == len(dev.queries) == 8


@pytest.mark.thorough
def test_the_upgraded_folder_is_the_old_index_with_new_queries(
    old: Path, bert: Path, dev: Dataset, tmp_path: Path
) -> None:
    found = upgrade(old, bert, dev, "RR@10")
    made = found.save(tmp_path / "up")
    assert evaluate(made, dev, ["RR@10"]).mean["RR@10"] == found.new
    before, rows = Retriever.open(old), np.arange(40)
    np.testing.assert_array_equal(made.index.documents(rows), before.index.documents(rows))
    assert verify_retriever(tmp_path / "up") > 3
    assert verify_retriever(old) > 3  # nothing of it was written over
    files = [p for p in (old / "documents").rglob("*") if p.is_file() and p.parent.name[0] == "g"]
    assert files
    assert all((tmp_path / "up" / p.relative_to(old)).samefile(p) for p in files[1:2])
    shutil.copytree(old, tmp_path / "alone")
    again = upgrade(tmp_path / "alone", bert, dev, "RR@10").save(tmp_path / "up")  # replaced
    shutil.rmtree(tmp_path / "alone")
    # Documents that come later are encoded as those before.
    again.add([Document("new", "", "gold and stone in the river")])
    old_vector = before.encoder.encode_documents(["gold and stone in the river"])
    np.testing.assert_allclose(again.index.documents([40]), old_vector, atol=1e-5)
    twice = upgrade(again, bert, dev, "RR@10")  # of an upgraded one: the documents' encoder stays
    assert twice.new == twice.old == found.new
    assert not twice.holds
    assert Retriever.open(tmp_path / "up").head.origin["upgrade"] == made.head.origin["upgrade"]


def test_the_least_grade_that_counts_is_the_datasets(old: Path, bert: Path, dev: Dataset) -> None:
    graded = Dataset.from_memory(
        list(dev.corpus), dict(dev.queries),
        {query: {d: g + n % 2 for d, g in grades.items() if g} for n, (query, grades) in
         enumerate(dev.qrels.items())}, split="dev",
    )  # fmt: skip
    graded.level = 2
    found, own = (
        upgrade(old, bert, graded, "RR@10"),
        evaluate(Retriever.open(old), graded, ["RR@10"]),
    )
    assert found.measure == next(iter(own.mean)) == "RR(rel=2)@10"
    assert found.old == own.mean[found.measure]


def test_a_model_trained_apart_is_not_compatible(
    old: Path, other: Path, bert: Path, dev: Dataset
) -> None:
    found = upgrade(old, other, dev, "RR@10")
    assert found.new < upgrade(old, bert, dev, "RR@10").new
    same = upgrade(old, DenseEncoder.from_pretrained(bert, query_prompt=NOISE), dev)
    assert (same.holds, same.new, same.p_value) == (False, same.old, 1.0)
    assert "not compatible" in same.verdict()


def test_a_given_encoder_is_left_as_it_is(old: Path, bert: Path, dev: Dataset) -> None:
    encoder = DenseEncoder.from_pretrained(bert, document_prompt="of: ")
    before = encoder.encode_documents(["gold"])
    upgrade(old, encoder, dev)
    np.testing.assert_array_equal(encoder.encode_documents(["gold"]), before)


@pytest.mark.thorough
def test_the_command_measures_and_writes(
    sluice: Call, old: Path, bert: Path, world: Path, dev: Dataset, tmp_path: Path
) -> None:
    found = upgrade(old, bert, dev, "RR@10")
    words = ("model", "upgrade", old, bert, "--dataset", world, "-m", "RR@10")
    code, out, err = sluice(*words, "--output", tmp_path / "up")
    assert code == 0, err
    assert f"{found.old:.4f}" in out
    assert f"{found.new:.4f}" in out
    assert "8 queries" in out
    assert "\ncompatible: the new queries do better on the old index than its own" in out
    assert out.rstrip().endswith(f"{tmp_path}/up: the index with the new query encoder")
    code, out, err = sluice("search", tmp_path / "up", "gold", "-k", 50)
    assert code == 0, err
    assert out
    code, out, _ = sluice(*words[:3], tmp_path / "up", *words[4:], "--format", "json")
    assert code == 0
    (first, second), caption = json.loads(out)["systems"], json.loads(out)["caption"]
    assert (first["RR@10"], second["RR@10"]) == (found.old, found.new)
    assert "paired t-test p" in caption


def test_an_incompatible_one_is_exit_code_1_and_writes_nothing(
    sluice: Call, old: Path, world: Path, tmp_path: Path
) -> None:
    words = ("model", "upgrade", old, old, "--dataset", world, "--output", tmp_path / "up")
    code, out, _ = sluice(*words)
    assert code == 1
    assert "not compatible: the new queries do no better on the old index" in out
    assert not (tmp_path / "up").exists()


def test_what_cannot_be_is_refused_with_file_key_and_remedy(
    sluice: Call, old: Path, bert: Path, world: Path, dev: Dataset, tmp_path: Path
) -> None:
    wide = DenseEncoder.from_pretrained(bert, projection=16, seed=5)
    wide.save_pretrained(tmp_path / "wide")
    code, _, err = sluice("model", "upgrade", old, tmp_path / "wide", "--dataset", world)
    assert code == 2
    assert f"{old}/index/manifest.json: encoder_fingerprint" in err
    assert "32 dimensions, and the new encoder's have 16" in err
    assert "projection: 32, or rebuild the index" in err
    with pytest.raises(ConfigError, match=r"retriever.json: encoder_fingerprint: query: BM25Enco"):
        upgrade(old, BM25Encoder(), dev)
    words = Retriever.build(BM25Encoder(), dev.corpus)
    with pytest.raises(ConfigError, match=r"json: encoder_fingerprint: document: BM25Encoder; a t"):
        upgrade(words, bert, dev)
    with pytest.raises(IndexFormatError, match=r"retriever.json: encoder_fingerprint: the index w"):
        Retriever.open(old, encoder=DenseEncoder.from_pretrained(bert))
    foreign = [Document(f"x{n}", "", f"text {n}") for n in range(4)]
    short = Retriever.build(DenseEncoder.from_pretrained(bert), foreign)
    with pytest.raises(DataError, match=r"none of the .* relevant documents of data is in it"):
        upgrade(short, bert, dev)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("x")
    with pytest.raises(IndexFormatError, match=r"contains 'letter.txt', which is not part of a"):
        upgrade(old, bert, dev).save(tmp_path / "mine")
    for wrong, message in (
        (("--output", old), "is the old retriever's own folder; choose another"),
        (("--output", tmp_path / "mine"), "contains 'letter.txt', which is not part of a ret"),
        (("-m", "nDDG@10"), "nDCG"),
        (("--format", "xml"), "--format"),
    ):
        code, _, err = sluice("model", "upgrade", old, bert, "--dataset", world, *wrong)
        assert (code, message in err) == (2, True), err
    code, _, err = sluice("model", "upgrade", tmp_path / "no", bert, "--dataset", world)
    assert (code, "no such folder" in err) == (2, True)
    code, _, err = sluice("model", "upgrade", old, tmp_path / "no", "--dataset", world)
    assert code == 2


def test_a_warning_counts_relevant_documents_that_are_missing(
    bert: Path, dev: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    some = [document for number, document in enumerate(dev.corpus) if number % 2]
    half = Retriever.build(DenseEncoder.from_pretrained(bert), some)
    upgrade(half, bert, dev)
    assert "are not in it and count as not found" in caplog.text
