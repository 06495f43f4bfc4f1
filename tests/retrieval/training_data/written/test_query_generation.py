import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Call
from small_world import write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import InvertedIndex
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.retrieval.training_data.written.query_generation import consistent, generate_queries
from sluice.training.generation.inverse_cloze import Passage


class Words:
    """Writes two queries of a document's own words; may stop after so many documents."""

    def __init__(self, stop: int | None = None) -> None:
        self.fingerprint = "words"
        self.stop = stop
        self.seen = 0

    def queries(self, documents: Sequence[Passage]) -> list[list[str]]:
        if self.stop is not None and self.seen >= self.stop:
            raise KeyboardInterrupt
        self.seen += len(documents)
        return [[document.text[:20], "the same for all"] for document in documents]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "world")


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


WORLD = [
    Document(f"d{n}", "", f"word{n} word{n // 2} common thing number{n % 7}") for n in range(200)
]


class TestFilter:
    def test_it_is_bm25s_own_list(self) -> None:
        chance = random.Random(1)
        pairs = [
            (
                f"d{chance.randrange(200)}",
                f"word{chance.randrange(100)} number{chance.randrange(7)}",
            )
            for _ in range(300)
        ]
        encoder = BM25Encoder()
        index = InvertedIndex()
        index.add(encoder.fit_documents([d.full_text for d in WORLD]))
        for k in (1, 5, 40):
            rows = index.search(encoder.encode_queries([query for _, query in pairs]), k).rows
            expected = [int(doc[1:]) in found for (doc, _), found in zip(pairs, rows, strict=True)]
            assert consistent(pairs, WORLD, k) == expected
            assert consistent(pairs, WORLD, k) == expected  # the same each time
        assert any(expected)
        assert not all(expected)

    def test_the_size_of_the_corpus_keeps_all(self) -> None:
        pairs = [("d1", "no word of any document"), ("d2", "word2")]
        assert consistent(pairs, WORLD, 200) == [True, True]
        assert consistent(pairs, WORLD, 199) == [False, True]

    def test_random_pairs_are_dropped(self) -> None:
        chance = random.Random(2)
        own = [(f"d{n}", f"word{n} common") for n in range(200)]
        mixed = [(f"d{chance.randrange(200)}", query) for _, query in own]
        assert sum(consistent(own, WORLD, 5)) == 200
        assert sum(consistent(mixed, WORLD, 5)) < 0.05 * 200

    def test_random_pairs_of_a_real_collection_are_dropped(self, collections: Path) -> None:
        data = load_dataset(collections / "scifact", "test")
        documents = list(data.corpus)
        chance = random.Random(3)
        pairs = [(chance.choice(documents).id, query) for query in data.queries.values()]
        assert sum(consistent(pairs, documents, 30)) < 0.05 * len(pairs)


class TestGeneration:
    def test_rows_for_training(self, world: Path, tmp_path: Path) -> None:
        data = load_dataset(world, None)
        made = generate_queries(Words(), data, tmp_path / "q.jsonl")
        assert (made.documents, made.generated, made.kept) == (40, 80, 80)
        rows = read(tmp_path / "q.jsonl")
        assert len(rows) == 80
        assert len({row["query_id"] for row in rows if row["query"] == "the same for all"}) == 1
        examples = file_examples({"file": str(made.output)}, load_dataset(world, "train"), 1)
        shared = next(e for e in examples if e.query.text == "the same for all")
        assert len(shared.relevant) == 40
        assert not (tmp_path / "q.jsonl.generated").exists()

    def test_the_filter(self, world: Path, tmp_path: Path) -> None:
        data = load_dataset(world, None)
        made = generate_queries(Words(), data, tmp_path / "q.jsonl", consistency=3)
        rows = read(tmp_path / "q.jsonl")
        assert made.kept == len(rows) < made.generated
        pairs = [(str(row["pos_ids"][0]), str(row["query"])) for row in rows]  # type: ignore[index]
        assert all(consistent(pairs, data.corpus, 3))

    def test_the_longer_corpus_is_a_corpus(self, world: Path, tmp_path: Path) -> None:
        data = load_dataset(world, None)
        target = world / "longer.jsonl"
        generate_queries(Words(), data, tmp_path / "q.jsonl", expanded=target, documents=2)
        before, after = read(world / "corpus.jsonl"), read(target)
        assert [line["_id"] for line in after] == [line["_id"] for line in before]
        text = str(before[0]["text"])
        assert after[0]["text"] == f"{text} {text[:20]} the same for all"
        assert after[2:] == before[2:]

    def test_a_stopped_generation_goes_on(self, tmp_path: Path) -> None:
        documents = [Document(f"d{n}", "", f"text number {n} of all") for n in range(300)]
        data = Dataset.from_memory(documents, {}, {"q": {"d1": 1}})
        with pytest.raises(KeyboardInterrupt):
            generate_queries(Words(stop=128), data, tmp_path / "q.jsonl")
        assert not (tmp_path / "q.jsonl").exists()
        with (tmp_path / "q.jsonl.generated").open("ab") as stream:
            stream.write(b'{"_id": "d128", "quer')  # as a kill may leave it
        rest = Words()
        made = generate_queries(rest, data, tmp_path / "q.jsonl")
        assert rest.seen == 300 - 128
        assert made.documents == 300
        generate_queries(Words(), data, tmp_path / "whole.jsonl")
        assert (tmp_path / "q.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()

    def test_other_settings_start_anew(self, world: Path, tmp_path: Path) -> None:
        data = load_dataset(world, None)
        (tmp_path / "q.jsonl.generated").write_text(
            '{"key": "other"}\n{"_id": "x", "queries": []}\n'
        )
        assert generate_queries(Words(), data, tmp_path / "q.jsonl").generated == 80

    def test_bad_settings(self, world: Path, tmp_path: Path) -> None:
        data = load_dataset(world, None)
        with pytest.raises(ConfigError, match="consistency: 0"):
            generate_queries(Words(), data, tmp_path / "q.jsonl", consistency=0)
        with pytest.raises(ConfigError, match="is a folder"):
            generate_queries(Words(), data, tmp_path)

    def test_the_command(self, sluice: Call, world: Path, tmp_path: Path) -> None:
        output = tmp_path / "q.jsonl"
        code, out, err = sluice(
            "teach", "generate", "key-sentences", world, "--output", output, "--consistency", 40
        )
        assert code == 0, err
        assert "queries for 40 documents" in out
        assert read(output)
        code, _, err = sluice(
            "teach", "generate", "nowhere/x", world, "--output", output, "--by", "beam"
        )
        assert code == 2
        assert "--by: 'beam'; expected one of beams, sampling; did you mean 'beams'?" in err
        code, _, err = sluice("teach", "generate", tmp_path, world, "--output", output)
        assert code == 2
        assert "no config.json" in err
