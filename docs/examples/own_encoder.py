"""An encoder of your own: counts of letter triples, hashed, of length 1.

In YAML: ``encoder: {type: own_encoder:TripleEncoder, width: 512}`` (the folder is on PYTHONPATH).
"""

import json
import zlib
from pathlib import Path

import numpy as np

from sluice import Document, Retriever
from sluice.encoders import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.retrieval.testing import check_encoder


class TripleEncoder(EncoderBase):
    """Any object with these five is an encoder; for sparse vectors return a ``csr_array``.

    ``EncoderBase`` can be left out: it lists what else an encoder may say of itself, with defaults.
    """

    normalize = True  # all vectors have length 1
    similarity = "cosine"

    def __init__(self, width: int = 256):
        self.width = self.dim = width  # an index is checked against dim before anything is encoded

    @property
    def fingerprint(self):
        """Changes whenever the vectors could: an index refuses another encoder's queries."""
        return fingerprint_of("letter triples", 1, self.width)

    def encode_documents(self, texts):
        vectors = np.zeros((len(texts), self.width), np.float32)
        for row, text in enumerate(texts):
            padded = f"  {text.lower()} "
            for start in range(len(padded) - 2):
                vectors[row, zlib.crc32(padded[start : start + 3].encode()) % self.width] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    encode_queries = encode_documents

    def save_pretrained(self, path):
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "triples.json").write_text(json.dumps(self.width))

    @classmethod
    def from_pretrained(cls, path):
        return cls(json.loads((Path(path) / "triples.json").read_text()))


documents = [Document("1", "", "a channel of water"), Document("2", "", "dense vectors")]
retriever = Retriever.build(TripleEncoder(), documents)
assert retriever.search("watery channels", k=1)[0].doc_id == "1"

# Order, batches, empty input, the fingerprint, saving: raises BrokenRule, or all is well.
check_encoder(TripleEncoder(), same=[TripleEncoder()], others=[TripleEncoder(64)])
