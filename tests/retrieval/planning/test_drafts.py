"""Drafted configs: filled from the data, commented, valid, and without problems."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from command_line import Call
from jsonschema import Draft202012Validator
from places import ROOT
from pyarrow import parquet

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.yaml_file import EDITOR_LINE, SCHEMA, configs
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.documents.document import Document
from sluice.retrieval.planning import drafts, problems as needs
from sluice.retrieval.planning.drafts import Lengths, dataset_facts, draft, jobs, pair_facts
from sluice.retrieval.planning.problems import problems
from sluice.retrieval.planning.templates import JOBS
from sluice.retrieval.training_data.example_sources import file_examples

VALIDATOR = Draft202012Validator(json.loads((ROOT / "configs" / SCHEMA).read_text("utf-8")))
PAIRS = "question,answer,negative\n" + "how are you,fine thanks to you,no\n" * 3


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a dataset of long documents, a file of pairs; any model is here."""
    folder = tmp_path / "mine"
    (folder / "qrels").mkdir(parents=True)
    texts = ["short", "word " * 300, "word " * 400]
    (folder / "corpus.jsonl").write_text(
        "".join(f'{{"_id": "d{n}", "title": "", "text": "{t}"}}\n' for n, t in enumerate(texts))
    )
    lines = [json.dumps({"_id": f"q{n}", "text": f"which document is {n}"}) for n in range(6)]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    for split, numbers in (("train", range(4)), ("test", range(4, 6))):
        rows = [f"q{n}\td{n % 3}\t1\n" for n in numbers]
        text = "query-id\tcorpus-id\tscore\n" + "".join(rows)
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    monkeypatch.setattr(needs, "local_folder", lambda name: tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "data"),
    [(job, {"dataset": "mine"}) for job in JOBS]
    + [(job, {"pairs": "pairs.csv"}) for job in JOBS if job.startswith("train")]
    + [("hybrid", {"documents": "mine"})],
)
def test_a_draft_has_no_problem(job: str, data: dict[str, str], work: Path) -> None:
    text = draft(job, Path("x.yaml"), **data)
    values = yaml.safe_load(text)
    assert [each.message for each in VALIDATOR.iter_errors(values)] == []
    assert problems(values) == []
    assert text.startswith(EDITOR_LINE)
    assert max(map(len, text.splitlines()[1:])) <= 100
    keys = [line for line in text.splitlines()[1:] if line and not line.startswith("#")]
    assert sum("  # " in line for line in keys) >= 5
    assert "\n\n\n" not in text
    assert "{" not in "".join(key for key in values if isinstance(key, str))


def test_it_is_filled_from_the_data(work: Path) -> None:
    values = yaml.safe_load(draft("train dense", Path("x.yaml"), dataset="mine"))
    assert (values["dataset"], values["output"]) == ("mine", "runs/dense-mine")
    assert values["encoder"]["query_length"] == 16
    assert values["encoder"]["document_length"] == 256
    assert yaml.safe_load(draft("tune", Path("x.yaml"), dataset="mine"))["evaluate"]["split"] == (
        "test"
    )
    text = draft("hybrid", Path("x.yaml"), dataset="mine")
    assert "# 3 documents; splits: test, train" in text
    assert yaml.safe_load(text)["retrievers"]["dense"]["passages"]["length"] == 200
    assert "columns: question, answer, negative" in draft(
        "train reranker", Path("x.yaml"), pairs="pairs.csv"
    )


def test_loose_documents_are_a_corpus(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[Any] = []

    def loaded(name: Any, split: None) -> Dataset:
        named.append(name)
        return Dataset(MemorySource("notes", [Document("1", "", "a text")], {}), None)

    monkeypatch.setattr(drafts, "load_dataset", loaded)
    (work / "notes").mkdir()
    values = yaml.safe_load(draft("hybrid", Path("x.yaml"), documents="notes"))
    assert named == [{"corpus": "notes"}] == [values["dataset"]]
    assert VALIDATOR.is_valid(values)


def test_queries_judgements_and_columns_of_ones_own(work: Path) -> None:
    (work / "odd.csv").write_text("Ref;Inhalt;Kopf\nd1;gold in the river;Gold\nd2;zebra;Zebra\n")
    (work / "topics.tsv").write_text("q1\tgold\n")
    (work / "dev.txt").write_text("q1 0 d1 1\n")
    own: dict[str, Any] = {
        "columns": {"id": "Ref", "text": ["Inhalt"]},
        "queries": "topics.tsv",
        "qrels": {"dev": "dev.txt", "test": "dev.txt"},
    }
    values = yaml.safe_load(draft("tune", Path("x.yaml"), documents="odd.csv", own=own))
    assert values["dataset"] == {"corpus": "odd.csv", **own}
    assert problems(values) == []
    with pytest.raises(ConfigError, match="queries: belong to documents of your own"):
        draft("evaluate", Path("x.yaml"), dataset="mine", own={"queries": "topics.tsv"})


def test_lengths() -> None:
    assert Lengths.of([]) == (0, 0)
    assert Lengths.of(["a b", "a", "a b c"]) == (2, 3)
    assert Lengths(5, 10).tokens(16, 128) == 16
    assert Lengths(5, 60).tokens(16, 128) == 96
    assert Lengths(5, 600).tokens(16, 128) == 128
    facts = dataset_facts(
        Dataset.from_memory([Document("1", "", "a b")], {"q": "x"}, {"q": {"1": 1}})
    )
    assert (facts.documents, facts.splits, facts.evaluated) == (1, ("test",), "test")
    assert not facts.training
    assert not facts.cut


@pytest.mark.parametrize(
    ("job", "data", "message"),
    [
        ("tran dense", {}, "not a job; did you mean 'train dense'.; expected one of"),
        ("hybrid", {"dataset": "mine", "pairs": "pairs.csv"}, "give one of"),
        ("hybrid", {"pairs": "pairs.csv"}, "--pairs: is for training"),
        ("hybrid", {"documents": "nowhere"}, "--documents: no file or folder nowhere"),
        ("quickstart", {"pairs": "pairs.csv"}, "--pairs: is for jobs"),
        ("train reranker", {"pairs": "plain.csv"}, "plain.csv has no negatives"),
        ("train dense", {"pairs": "none.csv"}, "none.csv: no such file"),
    ],
)
def test_what_it_refuses(job: str, data: dict[str, str], message: str, work: Path) -> None:
    (work / "plain.csv").write_text("query,positive\na,b\n")
    with pytest.raises((ConfigError, DataError), match=message):
        draft(job, Path("x.yaml"), **data)


def test_files_of_pairs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"query": "a b", "pos": ["c d e"]}\n\n{"query": "a", "pos": ["c"]}\n')
    assert pair_facts(file).columns == ("query", "pos")
    file.write_text("not json\n")
    with pytest.raises(DataError, match=r"pairs\.jsonl:1: not JSON"):
        pair_facts(file)


def test_files_of_pairs_are_read_as_training_reads_them(tmp_path: Path) -> None:
    row = {"positive": "it is in the river", "query": "where is gold", "n": "in the sky"}
    columns, texts = ",".join(row), ",".join(row.values())
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(f"{columns}\n{texts}\n".encode()))
    (tmp_path / "c.csv").write_text(f"{columns}\n{texts}\n".replace(",", ";"))
    for name in ("a.parquet", "b.csv.gz", "c.csv"):
        facts = pair_facts(tmp_path / name)
        assert (facts.columns, facts.negatives) == (tuple(row), True)
        assert (facts.query, facts.text) == (Lengths(3, 3), Lengths(5, 5))
    (tmp_path / "d.tsv").write_text("where is gold\tin the river\tin the sky\n")
    assert pair_facts(tmp_path / "d.tsv").negatives
    (tmp_path / "e.csv").write_text("a,b,c,d\nx y,one,two,three\n")  # not guessed: columns say it
    facts = pair_facts(tmp_path / "e.csv")
    assert (facts.query, facts.text, facts.negatives) == (Lengths(2, 2), Lengths(1, 1), False)


def test_the_schema_is_found_from_anywhere(tmp_path: Path) -> None:
    here = draft("bm25", tmp_path / "x.yaml").splitlines()[0]
    assert here == EDITOR_LINE + (configs() / SCHEMA).absolute().as_uri()
    inside = draft("bm25", configs().absolute() / "x.yaml").splitlines()[0]
    assert inside == EDITOR_LINE + SCHEMA


def test_on_the_command_line(sluice: Call, work: Path) -> None:
    code, out, _ = sluice("config", "init")
    assert (code, sluice("config", "init", "--list")[1]) == (0, out)
    *lines, last = out.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(jobs(core=True))
    assert last == f"and {len(jobs()) - len(lines)} more: sluice config init --all"
    out = sluice("config", "init", "--all")[1]
    assert {line.split("  ")[0] for line in out.splitlines()} == set(jobs())
    assert set(JOBS) | {"quickstart"} <= set(jobs())
    code, out, _ = sluice("config", "init", "hybrid", "--dataset", "mine")
    assert (code, out.split(":")[0]) == (0, "hybrid.yaml")
    before = (work / "hybrid.yaml").read_text()
    code, _, err = sluice("config", "init", "hybrid", "--dataset", "mine")
    assert (code, "exists and is left alone" in err) == (2, True)
    assert (work / "hybrid.yaml").read_text() == before
    assert sluice("config", "init", "quickstart", "--dataset", "mine", "--output", "q.yaml")[0] == 0
    copied = yaml.safe_load((work / "q.yaml").read_text())
    assert copied == {
        **yaml.safe_load((configs() / "quickstart.yaml").read_text()),
        "dataset": "mine",
    }
    assert sluice("config", "check", "hybrid.yaml", "--fast")[1].startswith(
        "hybrid.yaml: no problem\n"
    )


def test_sample_files(sluice: Call, work: Path) -> None:
    """Those that a recipe names, left alone where they are; the recipe has no problem then."""
    (work / "dev.tsv").write_text("mine")
    code, out, _ = sluice("config", "init", "production-hybrid", "--sample")
    assert (code, (work / "dev.tsv").read_text()) == (0, "mine")
    assert "clicks.jsonl: written" in out
    assert "dev.tsv" not in out
    assert not (work / "concepts.txt").exists()
    (work / "dev.tsv").unlink()
    code, out, _ = sluice("config", "init", "--sample")
    assert (code, set(out.split())) == (0, {"dev.tsv:", "concepts.txt:", "written"})
    assert "all there" in sluice("config", "init", "--sample")[1]
    found = problems(yaml.safe_load((work / "production-hybrid.yaml").read_text()))
    assert found == []
    data = load_dataset(
        {
            "corpus": "catalogue.jsonl", "queries": "queries.jsonl",
            "qrels": {"dev": "dev.tsv", "test": "test.tsv"},
        },
        "test",
    )  # fmt: skip
    assert data.qrels["q02"] == {"p02": 1}
    spec = {"type": "clicks", "file": "clicks.jsonl", "positives": "each"}
    examples = file_examples(spec, data, 1)
    asked = {q: f"p{q[1:]}" for q in data.qrels}
    assert len(examples) > 16
    assert not asked.keys() & {each.query.id for each in examples}  # neither dev nor test
    code, _, err = sluice("config", "init", "quickstart", "--sample")
    assert (code, "names a sample file" in err) == (2, True)
    assert not (work / "quickstart.yaml").exists()
