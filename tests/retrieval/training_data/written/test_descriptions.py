"""Descriptions that a language model writes of documents, and the misfits beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from loopback import Server
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.rerankers.language_model import Prompt
from sluice.retrieval import load_pipeline
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.stages.transforms.writer import Limits
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.retrieval.training_data.written.written_corpus import describe_corpus, read_descriptions


class Describing:
    """Answers by a function of the document."""

    fingerprint = "describing"

    def __init__(self, says: Callable[[str], Any]) -> None:
        self.says = says
        self.asked: list[str] = []

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        self.asked += [prompt.text for prompt in prompts]
        answers = [self.says(prompt.slots[0]) for prompt in prompts]
        return [each if isinstance(each, str) else json.dumps(each) for each in answers]


def usual(text: str) -> Any:
    word = text.split()[-1]
    return {"good": [f"about {word}", f"on {word}"], "bad": [f"against {word}", f"no {word}"]}


@pytest.fixture
def dataset() -> Dataset:
    corpus = [Document("a", "T", "the gold"), Document("b", "", ""), Document("c", "", "a river")]
    corpus += [Document(f"d{n}", "", f"text word{n}") for n in range(30)]
    return Dataset.from_memory(corpus, {"t": "x"}, {"t": {"a": 1}}, split="train")


def rows_in(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_each_description_is_a_row_with_all_misfits(dataset: Dataset, tmp_path: Path) -> None:
    model = Describing(usual)
    report = describe_corpus(model, dataset, tmp_path / "d.jsonl", count=2, documents=4)
    assert report[1:5] == (4, 3, 6, 6)
    assert "6 descriptions and 6 misfits of 3 documents, 1 without any" in str(report)
    assert rows_in(tmp_path / "d.jsonl")[0] == {
        "query_id": "described-0", "query": "about gold", "pos": ["T the gold"], "neg": [],
        "pos_ids": ["a"], "neg_ids": [], "negative_queries": ["against gold", "no gold"],
    }  # fmt: skip
    assert "Write 2 descriptions that fit this text" in model.asked[0]
    examples = file_examples({"file": str(tmp_path / "d.jsonl")}, dataset, 13)
    assert examples[1].negative_queries == ("against gold", "no gold")
    assert (examples[1].query.text, examples[1].relevant) == ("on gold", {"a"})


def test_one_text_of_two_documents_is_one_query(dataset: Dataset, tmp_path: Path) -> None:
    model = Describing(lambda text: {"good": ["a text", text], "bad": ["A  text", "z"]})
    describe_corpus(model, dataset, tmp_path / "d.jsonl", documents=3)
    assert {row["query"] for row in rows_in(tmp_path / "d.jsonl")} == {"T the gold", "a river"}
    model = Describing(lambda text: {"good": ["Same text"], "bad": [text]})
    describe_corpus(model, dataset, tmp_path / "e.jsonl", documents=3)
    assert {row["query_id"] for row in rows_in(tmp_path / "e.jsonl")} == {"described-0"}


@pytest.mark.parametrize(
    ("answer", "good", "bad"),
    [
        ('{"good": ["a", "b"], "bad": ["c"]}', ["a", "b"], ["c"]),
        ('Sure! ```json {"bad": ["c"], "good": ["a"]} ``` "x"', ["a"], ["c"]),
        ('{"good": ["a", "b is c', ["a"], []),  # cut
        (
            '{"good": ["a \\"b\\" [c]", "\\u00e9"], "bad": ["d]", "e"',
            ['a "b" [c]', "é"], ["d]", "e"],
        ),
        ('{"good": ["a", "a ", "A"], "bad": ["x", "a"]}', [], ["x"]),
        ('{"good": ["one", "two", "three"], "bad": []}', ["one", "two"], []),
        ('{"good": ["a\\qb", " "], "bad": [3, null]}', ["aqb"], []),
        ('{"good": "a", "bad": {"b": ["c"]}}', [], []),
        ("no idea", [], []),
        ('{"good": ["\\ud800 ore"], "bad": []}', ["? ore"], []),
        ("", [], []),
        # What is quoted before the answer: a document, the prompt, a thought, half an object.
        ('The text has "good": ["x"] in it. {"good": ["a"], "bad": ["c"]}', ["a"], ["c"]),
        ('The text has "good": ["x"] in it. {"good": ["a"], "bad": ["c", "d', ["a"], ["c"]),
        ('{"good": ["x"], "bad": []} is quoted: {"good": ["a"], "bad": ["c"]}', ["a"], ["c"]),
        ('{"good": ["...", ...], "bad": ["..."]}\n{"good": ["a"], "bad": ["c"]}', ["a"], ["c"]),
        ('{"good": ["says {\\"good\\": [\\"x\\"]}"], "bad": ["c"]}',
         ['says {"good": ["x"]}'], ["c"]),
        ('{"good": ["a"], "bad": ["c"]} {"good": ["x"]}', ["a"], ["c"]),
        ('[{"good": ["a"]}, {"bad": ["c"]}]', ["a"], ["c"]),
        ('{"answer": {"good": ["a"], "bad": ["c"]}}', ["a"], ["c"]),
        ('"good": ["a"],\n"bad": ["c"]', ["a"], ["c"]),
        ("{" * 5_000 + '"good": ["a"], "bad": ["c"]}', ["a"], ["c"]),
        ('{"a":' * 5_000, [], []),
    ],
)  # fmt: skip
def test_answers_of_every_kind(answer: str, good: list[str], bad: list[str]) -> None:
    assert read_descriptions(answer, 2) == (good, bad)


def test_what_cannot_be(dataset: Dataset, tmp_path: Path) -> None:
    output = tmp_path / "d.jsonl"
    with pytest.raises(DataError, match="no answer about 33 documents has descriptions; expected"):
        describe_corpus(Describing(lambda text: "Here you are."), dataset, output)
    with pytest.raises(DataError, match="no answer about 33"):
        describe_corpus(Describing(usual), dataset, tmp_path / "e.jsonl", limits=Limits(8, None, 0))
    with pytest.raises(DataError, match="the corpus has no documents to describe"):
        describe_corpus(Describing(usual), Dataset.from_memory([], {}, {}), output)
    with pytest.raises(ConfigError, match=r"prompt: has no \{text\}"):
        describe_corpus(Describing(usual), dataset, output, prompt="{document}")
    with pytest.raises(ConfigError, match=r"d\.csv: JSON lines are written"):
        describe_corpus(Describing(usual), dataset, tmp_path / "d.csv")
    with pytest.raises(ConfigError, match="count is 0, expected a whole number"):
        describe_corpus(Describing(usual), dataset, output, count=0)
    assert not list(tmp_path.glob("*.jsonl"))

    def fails(text: str) -> Any:
        raise ModelError("gone")

    with pytest.raises(ModelError, match="gone"):
        describe_corpus(Describing(fails), dataset, tmp_path / "f.jsonl")


def test_a_journey(
    sluice: Call, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Described by an endpoint, trained by YAML, indexed and searched; refused elsewhere."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    good = json.dumps({"good": ["what is it"], "bad": ["where is it", "why"]})

    def reply(body: dict[str, Any]) -> Any:
        return {"choices": [{"message": {"content": good}}], "usage": {"total_tokens": 5}}

    server = Server(reply)
    data = str(write_beir(tmp_path / "data"))
    model = json.dumps({"type": "http", "url": server.url, "model": "m", "retries": 0})
    rows = tmp_path / "described.jsonl"
    code, out, err = sluice("teach", "describe", model, data, "--output", rows, "--count", 2)
    server.close()
    assert code == 0, err
    assert "40 descriptions and 80 misfits of 40 documents, 200 tokens" in out
    facts: dict[str, Any] = {
        "dataset": data, "output": str(tmp_path / "out"),
        "train": {
            "by_description": {
                "encoder": {"type": "dense", "model": str(bert)},
                "examples": {"file": str(rows), "negative_queries": 1},
                "loss": {"type": "misfits", "weight": 0.5},
                "trainer": {
                    "max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1,
                },
            },
        },
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "by_description"}}},
        "pipelines": {"dense": "dense"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    assert len(load_pipeline(tmp_path / "out", "dense").search("what is it", 50)) == 40
    training = json.loads(next((tmp_path / "out").rglob("training.json")).read_text())
    assert training["loss"]["type"] == "misfits"
    code, _, err = sluice("run", file, "train.by_description.loss=info_nce", f"output={tmp_path}/2")
    assert code == 2
    assert "info_nce reads no negative_queries, which" in err
