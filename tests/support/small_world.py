"""A corpus of a few dozen documents in BEIR layout, a counting encoder, scorers of known mind."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.retrieval.documents.document import Document

SUBJECTS = ("gold", "river", "stone", "water", "sluice", "vector", "index", "term", "rank", "score")


def documents(count: int = 40) -> list[Document]:
    """Documents whose first ten each own one word, and that share others."""
    made = []
    for number in range(count):
        one, two = SUBJECTS[number % 10], SUBJECTS[(number // 10 + 3 * number) % 10]
        text = f"{one} {two} word{number} and the {one} of number {number}"
        made.append(Document(f"d{number:02d}", f"About {one}" if number % 2 else "", text))
    return made


def write_beir(folder: Path, count: int = 40) -> Path:
    """Write train (12 queries), dev and test (8 each) over the documents; returns the folder."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    docs = documents(count)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for document in docs:
            line = {"_id": document.id, "title": document.title, "text": document.text}
            stream.write(json.dumps(line) + "\n")
    queries, number = [], 0
    for split, size in (("train", 12), ("dev", 8), ("test", 8)):
        lines = ["query-id\tcorpus-id\tscore"]
        for _ in range(size):
            target = docs[(number * 3) % count]
            words = target.text.split()
            queries.append({"_id": f"q{number}", "text": f"{words[0]} {words[2]} {words[1]}"})
            lines.append(f"q{number}\t{target.id}\t1")
            lines.append(f"q{number}\t{docs[(number * 3 + 10) % count].id}\t{number % 2}")
            number += 1
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = "".join(json.dumps(query) + "\n" for query in queries)
    (folder / "queries.jsonl").write_text(text, encoding="utf-8")
    return folder


def write_marked(folder: Path, word: str) -> Path:
    """Write a collection with the ids of every other, whose texts have a word of their own."""
    write_beir(folder)
    for name in ("corpus.jsonl", "queries.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        told = [{**line, "text": f"{word} {line['text']}"} for line in lines]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in told))
    return folder


class WordEncoder:
    """Dense counts of hashed words; as deterministic as an encoder can be."""

    def __init__(self, dim: int = 64) -> None:
        self.dim = dim

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("words", self.dim)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.encode_documents(texts)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, int(hashlib.sha256(word.encode()).hexdigest(), 16) % self.dim] += 1
        return vectors

    def save_pretrained(self, path: str | Path) -> None:
        with replaced_folder(Path(path)) as folder:
            (folder / "words.json").write_text(json.dumps({"dim": self.dim}), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "WordEncoder":
        return cls(json.loads((Path(path) / "words.json").read_text())["dim"])


class UnsureEncoder(WordEncoder):
    """Counts of words, and how unsure it is of a query: by which words those are."""

    def uncertainty(self, vectors: np.ndarray) -> np.ndarray:
        return vectors @ np.log(np.arange(1, self.dim + 1))


class LengthScorer:
    """Longer documents first."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(len(document)) for _, document in pairs]


class ConstantScorer:
    """Every pair the same."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [1.0] * len(pairs)


class OverlapScorer:
    """The share of the query's words that a document has, word by word."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [
            len(set(query.lower().split()) & set(document.lower().split())) / 10
            for query, document in pairs
        ]
