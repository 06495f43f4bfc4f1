"""Examples of type fields: sides joined, co-occurrences counted, same texts no negatives."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Document, train
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.training_data.example_sources import file_examples

VACANCIES = [
    Document("a", "Miner", "Digs for gold.", {"skills": ["digging", "sieving"], "grade": 3}),
    Document("b", "miner ", "Digs.", {"skills": ["Digging", "singing"], "city": "Dawson"}),
    Document("c", "Cook", "Cooks.", {"skills": ["cooking"]}),
    Document("d", "Cook", "", {"skills": [], "city": "Dawson"}),
    Document("e", "", "Nobody.", {"skills": ["waiting"]}),
    Document("f", "Baker", "Cooks.", {"skills": ["cooking"]}),
]


def dataset(documents: list[Document] = VACANCIES) -> Dataset:
    return Dataset.from_memory(documents, {"q": "x"}, {"q": {"a": 1}}, split="train")


def made(**spec: Any) -> list[tuple[str, str, str, set[str]]]:
    examples = file_examples({"type": "fields", **spec}, dataset(), 1)
    return [
        (each.query.text, each.documents[0].id, each.documents[0].text, set(each.relevant))
        for each in examples
    ]


def test_titles_and_skills() -> None:
    assert made(query="title", positive="skills") == [
        ("Miner", "a", "digging, sieving", {"a", "b"}),
        ("miner", "b", "Digging, singing", {"a", "b"}),
        ("Cook", "c", "cooking", {"c", "f"}),  # d has no skills, e no title
        ("Baker", "f", "cooking", {"c", "f"}),
    ]


def test_sides_of_several_fields_are_joined_in_order() -> None:
    assert made(query=["city", "title"], positive=["skills", "text"]) == [
        ("Miner", "a", "digging, sieving Digs for gold.", {"a"}),
        ("Dawson miner", "b", "Digging, singing Digs.", {"b"}),
        ("Cook", "c", "cooking Cooks.", {"c", "f"}),
        ("Baker", "f", "cooking Cooks.", {"c", "f"}),
    ]  # d has no positive, e no query


def test_what_stands_together_often_enough_by_counting() -> None:
    assert made(query="title", positive="skills", least=2) == [
        ("Miner", "a", "digging", {"a", "b"}),
        ("miner", "b", "Digging", {"a", "b"}),
    ]
    counts = Counter(
        (document.title.strip().lower(), skill.lower())
        for document in VACANCIES
        for skill in document.metadata.get("skills", ())  # type: ignore[union-attr]
    )
    for least in (1, 2):
        kept = {
            (query.strip().lower(), item.lower())
            for query, _, text, _ in made(query="title", positive="skills", least=least)
            for item in text.split(", ")
        }
        assert kept == {pair for pair, count in counts.items() if count >= least and pair[0]}


def test_a_limit_takes_the_first_documents_and_order_does_not_matter() -> None:
    assert [each[1] for each in made(query="title", positive="skills", documents=3)] == [
        "a", "b", "c",
    ]  # fmt: skip
    spec = {"type": "fields", "query": "title", "positive": "skills", "least": 2}
    found = []
    for order in itertools.islice(itertools.permutations(VACANCIES), 0, 720, 90):
        examples = file_examples(spec, dataset(list(order)), 1)
        found.append(sorted((e.query.id, e.documents, sorted(e.relevant)) for e in examples))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({}, ConfigError, "needs 'query'"),
        ({"query": "title"}, ConfigError, "needs 'positive'"),
        ({"query": [], "positive": "text"}, ConfigError, r"fields.query: \[\]; expected the name"),
        ({"query": "title", "positive": ["text", "title"]}, ConfigError, "'title' is named twice"),
        ({"query": "title", "positive": "skils"}, DataError,
         "none of 6 documents has a field 'skils'; fields: city, skills, text, title; did you mean"
         " 'skills'"),
        ({"query": "title", "positive": "grade"}, DataError, "has a field 'grade'"),
        ({"query": "city", "positive": "skills", "least": 9}, DataError,
         "none of 6 documents has both sides, 9 times together: city; and skills"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    spec: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        file_examples({"type": "fields", **spec}, dataset(), 1)
    with pytest.raises(DataError, match="none of 0 documents"):
        fields = {"type": "fields", "query": "title", "positive": "text"}
        file_examples(fields, dataset([]), 1)


def test_a_journey(bert: Path, tmp_path: Path) -> None:
    config = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "encoder": {"type": "dense", "model": str(bert)}, "loss": "info_nce",
        "examples": {"type": "fields", "query": "title", "positive": "text"},
        "evaluate": {"by": "examples", "measures": ["RR@10"]},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4},
    }  # fmt: skip
    folder = train(config)
    facts = read_json(folder / "manifest.json")
    assert 0 < facts["examples"] < 20  # every other document has a title, and a tenth is held out
    config["examples"] = {"type": "fields", "query": "title", "positive": "abstract"}
    with pytest.raises(DataError, match="has a field 'abstract'; fields: text, title"):
        train(config)
