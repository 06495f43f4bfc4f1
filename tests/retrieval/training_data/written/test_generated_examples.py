"""``examples: {type: generated}``: from judgements to an encoder, kept, resumed, refused."""

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import Dataset, Document, load_dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.training_data.written.generated_examples import (
    GeneratedExamples,
    drawn_documents,
    labelled_pairs,
)
from sluice.retrieval.training_data.written.query_generation import consistent
from sluice.training.generation import prompt_learner
from sluice.training.generation.query_generation import ModelGenerator

FEW = {"pairs": 5, "tokens": 3, "shots": 1, "choices": 2, "epochs": 1, "length": 5}


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset(write_beir(tmp_path_factory.mktemp("data") / "world"), "train")


@pytest.mark.thorough
def test_a_journey(sluice: Call, tmp_path: Path, gpt2: Path, bert: Path) -> None:
    examples = {"type": "generated", "model": str(gpt2), "documents": 6, "consistency": 40, **FEW}
    config: dict[str, Any] = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "train": {
            "student": {
                "encoder": {"type": "dense", "model": str(bert)}, "loss": {"type": "info_nce"},
                "examples": examples,
                "trainer": {"max_steps": 2, "per_device_train_batch_size": 4},
            },
        },
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "student"}}},
        "pipelines": {"dense": "dense"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    code, _, err = sluice("config", "check", file)
    assert code == 0, err
    code, _, err = sluice("run", file)
    assert code == 0, err
    assert "a soft prompt is learnt from 4 pairs in up to 1 epoch of 4 steps each, then 1" in err
    assert "the best of 2 groups of examples" in err
    (kept,) = tmp_path.rglob("generated-*.jsonl")
    assert kept.read_text("utf-8").count("\n") == 6
    assert "11 examples" in (tmp_path / "out" / "models" / "student" / "README.md").read_text()
    code, out, err = sluice("search", tmp_path / "out", "gold", "--pipeline", "dense", "-k", 100)
    assert code == 0, err
    assert out.count("d0") >= 10
    examples["model"] = str(tmp_path / "gone")
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    code, _, err = sluice("config", "check", file)
    assert code == 2
    assert "train.student.examples.model: " in err


def test_verbs_learn_and_use_a_prompt(
    sluice: Call, tmp_path: Path, gpt2: Path, train: Dataset
) -> None:
    data, prompt, rows = write_beir(tmp_path / "data"), tmp_path / "prompt", tmp_path / "q.jsonl"
    words = ["--pairs", 5, "--tokens", 3, "--shots", 1, "--epochs", 1, "--length", 5]
    code, out, err = sluice("teach", "prompt", gpt2, data, "--output", prompt, *words)
    assert code == 0, err
    assert "3 vectors; loss of the held-out pairs" in out
    called = ["teach", "generate", gpt2, data, "--output", rows, "--soft-prompt", prompt]
    code, out, err = sluice(*called, "--length", 5, "--documents", 3, "--queries", 2)
    assert code == 0, err
    assert "for 3 documents" in out
    for call, message in (
        (["teach", "prompt", gpt2, data, "--output", prompt], "exists already"),
        (["teach", "prompt", gpt2, data, "--output", tmp_path / "p", "--pairs", 4], "5 or more"),
        ([*called[:2], "key-sentences", *called[3:]], "--soft-prompt: key-sentences"),
        ([*called[:-1], tmp_path / "data"], "no soft prompt"),
    ):  # fmt: skip
        code, _, err = sluice(*call)
        assert code == 2, call
        assert message in err


def test_what_was_made_is_kept(
    train: Dataset, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = GeneratedExamples(str(gpt2), documents=4, consistency=None, **FEW)  # type: ignore[arg-type]
    first = source.examples(train, 1, tmp_path)
    pairs = labelled_pairs(train, 5, 1)
    assert [each.query.id for each in first[:5]] == [pair.query for pair in pairs]
    assert len(first) == 9
    assert {each.documents[0].id for each in first[5:]}.isdisjoint(pair.document for pair in pairs)
    assert [f for f in tmp_path.iterdir() if f.suffix in (".state", ".generated")] == []

    def opened(*args: Any, **options: Any) -> None:
        raise AssertionError("a model was opened again")

    with monkeypatch.context() as patch:
        patch.setattr(ModelGenerator, "from_pretrained", opened)
        assert source.examples(train, 1, tmp_path) == first
        settings = {**FEW, "judgements": False}
        alone = GeneratedExamples(str(gpt2), documents=4, consistency=None, **settings)  # type: ignore[arg-type]
        assert alone.examples(train, 1, tmp_path) == first[5:]
    with monkeypatch.context() as patch:  # another filter: the same prompt
        patch.setattr(prompt_learner, "learn_prompt", opened)
        other = GeneratedExamples(str(gpt2), documents=4, consistency=40, **FEW)  # type: ignore[arg-type]
        assert len(other.examples(train, 1, tmp_path)) == 9
    plain = GeneratedExamples(str(gpt2), pairs=0, documents=4, consistency=None, length=5)
    assert len(plain.examples(train, 1, tmp_path)) == 4


def test_nothing_passes_the_filter(train: Dataset, gpt2: Path, tmp_path: Path) -> None:
    # A random model's queries of a document ("of", "##p") are in no document's first place.
    source = GeneratedExamples(str(gpt2), pairs=0, documents=2, consistency=1, length=2)
    for _ in range(2):  # the second reads what the first has kept
        with pytest.raises(DataError, match="among its first 1; raise consistency"):
            source.examples(train, 1, tmp_path)


def test_pairs_are_drawn_by_seed(train: Dataset) -> None:
    pairs = labelled_pairs(train, 12, 1)
    assert {pair.query for pair in pairs} == set(train.queries)
    assert labelled_pairs(train, 4, 1) == pairs[:4]
    assert labelled_pairs(train, 12, 2) != pairs
    for pair in pairs:
        grades = train.qrels[pair.query]
        assert grades[pair.document] == max(grades.values())
        assert set(pair.relevant) == {name for name, grade in grades.items() if grade > 0}
    with pytest.raises(DataError, match="pairs: 13, but the train split has 12 judged queries"):
        labelled_pairs(train, 13, 1)


def test_documents_are_drawn_by_seed(train: Dataset) -> None:
    known = {"d00", "d01"}
    some, first = drawn_documents(train, 7, known, 1)
    every, all_texts = drawn_documents(train, None, known, 1)
    assert len(some) == 7
    assert some < every == {each.id for each in train.corpus} - known
    assert drawn_documents(train, 7, known, 2)[0] != some
    assert drawn_documents(train, 99, known, 1) == (every, all_texts) != (some, first)
    with pytest.raises(DataError, match="no document with a text is left"):
        drawn_documents(train, 7, {each.id for each in train.corpus}, 1)


def test_the_filter_is_brute_force_bm25() -> None:
    """The formula, term by term; equal scores by the order of the corpus."""
    chance = random.Random(5)
    words = [f"w{n}x" for n in range(30)]
    texts = [" ".join(chance.choices(words, k=chance.randrange(3, 9))) for _ in range(60)]
    corpus = [Document(f"d{n}", "", text) for n, text in enumerate(texts)]
    pairs = [(f"d{chance.randrange(60)}", " ".join(chance.sample(words, 3))) for _ in range(80)]
    lists = [text.split() for text in texts]
    mean = sum(map(len, lists)) / len(lists)
    frequency = Counter(word for own in lists for word in set(own))

    def score(query: str, own: list[str]) -> float:
        total = 0.0
        for word in query.split():
            idf = math.log(1 + (60 - frequency[word] + 0.5) / (frequency[word] + 0.5))
            count = own.count(word)
            total += idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * len(own) / mean))
        return total

    expected = []
    for name, query in pairs:
        scores = {f"d{n}": score(query, own) for n, own in enumerate(lists)}
        ranked = sorted((doc for doc in scores if scores[doc] > 0), key=lambda doc: -scores[doc])
        expected.append(name in ranked[:7])
    assert 0 < sum(expected) < len(expected)
    assert consistent(pairs, corpus, 7) == expected


def test_a_dataset_without_judgements(train: Dataset, gpt2: Path, tmp_path: Path) -> None:
    corpus = Dataset(MemorySource("bare", list(train.corpus), {}), None)
    with pytest.raises(DataError, match="no train split to take judgements from; pairs: 0"):
        GeneratedExamples(str(gpt2)).examples(corpus, 1, tmp_path)
    with pytest.raises(DataError, match="pairs: 50, but the train split has 12"):
        GeneratedExamples(str(gpt2)).examples(train, 1, tmp_path)
