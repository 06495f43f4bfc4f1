"""Build, change and compact a retriever of token vectors until somebody kills this process."""

import itertools
import sys
from pathlib import Path

from small_world import documents
from token_functions import token_vectors

from sluice.encoders import FunctionEncoder
from sluice.indexing import TokenIndex
from sluice.retrieval import Document, Encoding, Retriever

path, docs = Path(sys.argv[1]), documents()
for turn in itertools.count():
    retriever = Retriever.build(
        FunctionEncoder(token_vectors, name="words"),
        docs[: 20 + 10 * (turn % 2)],
        index=TokenIndex("int8", mode="gather" if turn % 2 else "exact"),
        path=path,
        encoding=Encoding(shard=6),
    )
    if turn == 0:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    retriever.add(docs[30:])
    retriever.update([Document("d02", text="gold river gold"), Document("new", text="word31 the")])
    retriever.delete(["d01", "d35"])
    retriever.compact()
