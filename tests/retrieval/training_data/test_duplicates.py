"""Near-duplicates against comparing every pair; the corpus without them; the command line."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from hypothesis import given, settings, strategies as st
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Dataset, Document
from sluice.retrieval.documents.likeness import repeated, sketch, text_likeness, word_hashes
from sluice.retrieval.training_data.duplicates import deduplicate


def of_all_pairs(texts: list[str], least: float) -> list[tuple[int, int, float]]:
    """Of each text that is like an earlier one that stays: the most similar, the first of ties."""
    alike = text_likeness(texts)
    kept: list[int] = []
    dropped = []
    for place in range(len(texts)):
        best = max(kept, key=lambda other: (alike[place, other], -other), default=None)
        if best is not None and alike[place, best] >= least:
            dropped.append((place, best, float(alike[place, best])))
        else:
            kept.append(place)
    return dropped


def found(texts: list[str], least: float) -> list[tuple[int, int, float]]:
    return [tuple(each) for each in repeated([sketch(word_hashes(t)) for t in texts], least)]


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8).map(" ".join), max_size=12),
    st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]),
)
def test_short_texts_are_those_of_all_pairs(texts: list[str], least: float) -> None:
    assert found(texts, least) == of_all_pairs(texts, least)


@pytest.mark.parametrize("least", [0.6, 0.8, 0.9])
def test_changed_copies_are_those_of_all_pairs(least: float) -> None:
    draw = random.Random(3)
    words = [f"w{number}" for number in range(900)]
    texts = []
    for _ in range(60):
        own = draw.sample(words, 60)
        for changed in (0, 2, 5, 8, 15, 30):
            texts.append(" ".join([*own[changed:], *draw.sample(words, changed)]))
    draw.shuffle(texts)
    expected = of_all_pairs(texts, least)
    assert len(expected) > 50
    assert found(texts, least) == expected


def test_how_rarely_a_pair_is_missed() -> None:
    """Sketches that agree in exactly the share that counts, as far apart as chance has it."""
    draw = np.random.default_rng(5)
    missed = 0
    for _ in range(300):
        one = draw.integers(0, 2**32, 128, np.uint32)
        other = draw.integers(0, 2**32, 128, np.uint32)
        same = draw.permutation(128)[:103]  # .805
        other[same] = one[same]
        missed += not repeated([one, other], 0.8)
    assert missed <= 2


def test_the_first_stays_and_the_report_says_what_is_lost(tmp_path: Path) -> None:
    corpus = [
        Document("a", "Gold", "in the river"),
        Document("b", "", "gold in the RIVER"),
        Document("c", "", ""),
        Document("d", "", "something else", {"year": 2020}),
        Document("e", "...", ""),
    ]
    dataset = Dataset.from_memory(corpus, {"q": "gold"}, {"q": {"b": 1, "e": 0}})
    output = tmp_path / "new" / "corpus.jsonl.gz"
    report = deduplicate(dataset, output=output)
    assert (report.documents, report.relevant) == (5, 1)
    assert report.repeated == [("b", "a", 1.0), ("e", "c", 1.0)]
    lines = [json.loads(line) for line in gzip.decompress(output.read_bytes()).splitlines()]
    assert [line["_id"] for line in lines] == ["a", "c", "d"]
    assert lines[2] == {
        "_id": "d", "title": "", "text": "something else", "metadata": {"year": 2020},
    }  # fmt: skip
    assert deduplicate(Dataset.from_memory([corpus[0]], {}, {})).repeated == []
    assert not deduplicate(dataset, duplicates=1.0).repeated[2:]


def test_bad_input_leaves_no_file(tmp_path: Path) -> None:
    empty = Dataset.from_memory([], {}, {})
    with pytest.raises(DataError, match="no documents; expected at least one"):
        deduplicate(empty, output=tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match="duplicates: 0; expected a number above 0, up to 1"):
        deduplicate(empty, duplicates=0)
    assert not list(tmp_path.iterdir())


def test_the_command_line(tmp_path: Path, sluice: Call) -> None:
    table = tmp_path / "docs.csv"
    rows = [f"{n},gold in river number {n}" for n in range(14)]
    table.write_text("\n".join(["name,body", "x,gold in river number 0", *rows]) + "\n")
    columns = ("--id", "name", "--text", "body")
    code, out, err = sluice("data", "dedupe", table, *columns, "--output", tmp_path / "c.jsonl")
    assert code == 0, err
    assert out.splitlines() == [
        "       15  documents",
        "        1  of them repeat an earlier one (0.8 alike)",
        "        0  of these are relevant to a query; judgements are not changed",
        "0: x (1.00)",
        f"written: {tmp_path / 'c.jsonl'}",
    ]
    assert len((tmp_path / "c.jsonl").read_text().splitlines()) == 14
    code, out, _ = sluice("data", "dedupe", table, *columns, "--duplicates", 0.5)
    assert out.splitlines()[-1] == "and 4 more"
    code, out, _ = sluice("data", "dedupe", table, *columns, "--json")
    assert json.loads(out)["repeated"] == [{"doc_id": "0", "of": "x", "likeness": 1.0}]
    (tmp_path / "empty.jsonl").write_text("")
    before = sorted(tmp_path.iterdir())
    for wrong in (["none"], [tmp_path / "empty.jsonl"], [table, *columns, "--output", tmp_path]):
        code, _, err = sluice("data", "dedupe", *wrong)
        assert code == 2, wrong
        assert err.startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before


def test_data_describes_where_no_sub_verb_is_named(tmp_path: Path, sluice: Call) -> None:
    data = write_beir(tmp_path / "world")
    usual = sluice("data", data, "--split", "train")
    assert usual == sluice("data", "describe", data, "--split", "train")
    assert usual == sluice("data", "--split", "train", data)
    assert json.loads(usual[1])["split"] == "train"
    assert sluice("data", "--help")[1].count("contamination") == 1
