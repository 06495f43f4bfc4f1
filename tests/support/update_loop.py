"""Update half of a retriever's documents, turn after turn, until somebody kills this process."""

import itertools
import sys
from pathlib import Path

from small_world import documents

from sluice.retrieval import Document, Retriever

docs = documents()[::2]
retriever = Retriever.open(Path(sys.argv[1]))
for turn in itertools.count():
    made = [Document(d.id, d.title, f"{d.text} turn{turn}", {"turn": turn}) for d in docs]
    retriever.update(made)
    if turn == 0:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
