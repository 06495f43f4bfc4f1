"""An encoder whose vectors show how it was called, so that a test sees another shard plan."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.retrieval.documents.document import Document


class BatchEncoder:
    """Vectors of 16 digits of the text's hash; the last ones tell its place in the call.

    A real encoder's vectors depend on their batch too, in their last bits.
    """

    def __init__(self, dim: int = 16, seconds: float = 0.0, name: str = "batch") -> None:
        self.dim, self.seconds, self.name = dim, seconds, name
        self.calls: list[list[str]] = []

    @property
    def encoded(self) -> int:
        """How many texts were encoded."""
        return sum(map(len, self.calls))

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.name, self.dim)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return vectors_of(texts, self.dim)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        if len(texts):
            self.calls.append(list(texts))
        time.sleep(self.seconds)
        vectors = vectors_of(texts, self.dim)
        vectors[:, -2] = np.arange(len(texts)) / 64
        vectors[:, -1] = len(texts) / 64
        return vectors

    def save_pretrained(self, path: str | Path) -> None:
        with replaced_folder(Path(path), ["batch.json"]) as folder:
            facts = {"dim": self.dim, "name": self.name}
            (folder / "batch.json").write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "BatchEncoder":
        return cls(**json.loads((Path(path) / "batch.json").read_text()))


class SparseEncoder(BatchEncoder):
    """The same as sparse vectors; every third text has none at all."""

    def encode_queries(self, texts: Sequence[str]) -> sparse.csr_array:
        return sparse.csr_array(super().encode_queries(texts))

    def encode_documents(self, texts: Sequence[str]) -> sparse.csr_array:
        dense = super().encode_documents(texts)
        dense[[len(text) % 3 == 0 for text in texts]] = 0
        return sparse.csr_array(dense)


class DyingEncoder(BatchEncoder):
    """Its process is killed at the first text, as by a machine without memory."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        if len(texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_documents(texts)


def vectors_of(texts: Sequence[str], dim: int) -> np.ndarray:
    hashes = [hashlib.sha256(text.encode()).digest() * (dim // 32 + 1) for text in texts]
    digits = np.frombuffer(b"".join(each[:dim] for each in hashes), np.uint8)
    return digits.reshape(len(texts), dim).astype(np.float32) / 255


def many(count: int, *, repeated: int = 7) -> list[Document]:
    """Documents of which one in ``repeated`` has the text of another."""
    numbers = [n - repeated // 2 if n and n % repeated == 0 else n for n in range(count)]
    return [Document(f"d{n:05d}", "", f"text number {one}") for n, one in enumerate(numbers)]
