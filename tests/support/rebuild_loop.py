"""Rebuild, add to and delete from a retriever until somebody kills this process."""

import itertools
import sys
from pathlib import Path

from small_world import documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Retriever

docs = documents()
path = Path(sys.argv[1])
for turn in itertools.count():
    retriever = Retriever.build(BM25Encoder(), docs[: 20 if turn % 2 else 30], path=path)
    if turn == 0:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    retriever.add(docs[30:])
    retriever.delete(["d01", "d35"])
    retriever.compact()
