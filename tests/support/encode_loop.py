"""Build a retriever with an encoder that takes its time, until somebody kills this process."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from batch_encoder import BatchEncoder, many

from sluice.retrieval import Encoding, Retriever


def encode(texts: Sequence[str]) -> np.ndarray:
    if len(encoder.calls) == 1:  # a first shard is whole
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    return BatchEncoder.encode_documents(encoder, texts)


path, cache, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
encoder = BatchEncoder(seconds=seconds)
encoder.encode_documents = encode  # type: ignore[method-assign]
Retriever.build(encoder, many(600), path=path, encoding=Encoding(shard=16, cache=cache))
sys.stdout.write(f"encoded {encoder.encoded}\n")
